"""Names for a host's sandboxes: a DNS server that answers 127.0.0.1 for everything below one domain, and a way to have a command
ask it.

An SDK resolves names with the C library. So the server is a real one, on an address of the loopback of its own, and the command
runs with an /etc/resolv.conf of its own, in a mount namespace.
"""

import secrets
import socket
import struct
import tempfile
import threading

A = 1
NXDOMAIN = 3


class Server:
    def __init__(self, domain):
        self.domain = domain.encode()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # Nobody else's, whatever listens on port 53 of others.
        self.address = "127.%d.%d.%d" % (64 + secrets.randbelow(128), secrets.randbelow(256), 1 + secrets.randbelow(254))
        self.socket.bind((self.address, 53))
        self.resolv_conf = tempfile.NamedTemporaryFile("w", prefix="resolv.conf.")
        self.resolv_conf.write("nameserver %s\noptions timeout:1\n" % self.address)
        self.resolv_conf.flush()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                query, client = self.socket.recvfrom(512)
                self.socket.sendto(answer(query, self.domain), client)
            except (ValueError, IndexError, struct.error):
                continue  # no query
            except OSError:
                return

    def command(self, argv):
        """The command that runs `argv` with this server."""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"',
                self.resolv_conf.name, *argv]

    def close(self):
        self.socket.close()
        self.resolv_conf.close()


def answer(query, domain):
    """The response to one question (RFC 1035, section 4)."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1:at + 1 + length])
        at += 1 + length
    kind, = struct.unpack_from(">H", query, at + 1)
    question = query[12:at + 5]
    ours = b".".join(labels).lower().endswith(b"." + domain)
    addresses = 1 if ours and kind == A else 0
    # Response, recursion desired and available; the code.
    flags = 0x8180 | (0 if ours else NXDOMAIN)
    head = query[:2] + struct.pack(">HHHHH", flags, 1, addresses, 0, 0)
    # The name is the question's, at offset 12; class IN, to be kept for 60 s, four bytes.
    record = struct.pack(">HHHIH", 0xC00C, A, 1, 60, 4) + socket.inet_aton("127.0.0.1")
    return head + question + record * addresses
