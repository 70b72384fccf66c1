"""An internet for one test run, inside a network namespace: a name server, and servers that say who came.

    internet.py NAMESPACE CERTIFICATE KEY    reads the zone from standard input: {"NAME": ["ADDRESS", ...]}

Every arrival is one line of JSON on standard output. Ends, and takes the namespace with it, on SIGTERM.
"""

import json
import signal
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading

NAMESPACE, CERTIFICATE, KEY = sys.argv[1:]
ZONE = json.load(sys.stdin)
A, AAAA = 1, 28
LOCK = threading.Lock()


def arrived(protocol, own, peer, name=None):
    with LOCK:
        print(json.dumps({"protocol": protocol, "address": own[0].removeprefix("::ffff:"), "port": own[1],
                          "peer": peer[0].removeprefix("::ffff:"), "name": name}), flush=True)


def answer(query):
    """To a DNS query: what the zone has, or that there is no such name."""
    ident, _, _, _, _, _ = struct.unpack("!6H", query[:12])
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode())
        at += 1 + query[at]
    kind, = struct.unpack("!H", query[at + 1:at + 3])
    name = ".".join(labels).lower()
    family = {A: socket.AF_INET, AAAA: socket.AF_INET6}.get(kind)
    wanted = [address for address in ZONE.get(name, []) if (":" in address) == (kind == AAAA)]
    records = [socket.inet_pton(family, address) for address in wanted] if family else []
    flags = 0x8580 if name in ZONE else 0x8583
    reply = struct.pack("!6H", ident, flags, 1, len(records), 0, 0) + query[12:at + 5]
    for data in records:
        reply += struct.pack("!HHHIH", 0xC00C, kind, 1, 60, len(data)) + data
    return name, reply


class Names(socketserver.BaseRequestHandler):
    def handle(self):
        query, sock = self.request
        try:
            name, reply = answer(query)
        except (IndexError, struct.error, UnicodeDecodeError):
            name, reply = None, None
        arrived("dns", sock.getsockname(), self.client_address, name)
        if reply:
            sock.sendto(reply, self.client_address)


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        data, sock = self.request
        arrived("udp", sock.getsockname(), self.client_address, data[:64].decode(errors="replace"))
        sock.sendto(data, self.client_address)


class Tcp(socketserver.BaseRequestHandler):
    """Says where it is, then echoes lines. What begins like HTTP is answered as such, TLS is unwrapped on port 443."""

    def handle(self):
        name, sock = None, self.request
        own = sock.getsockname()
        sock.settimeout(600)
        if own[1] == 443:
            seen = []
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE, KEY)
            context.sni_callback = lambda _sock, server_name, _context: seen.append(server_name)
            try:
                sock = context.wrap_socket(sock, server_side=True)
            except OSError:
                pass
            name = seen[0] if seen else None
        else:
            arrived("tcp", own, self.client_address)
        if own[1] not in (80, 443, 8080):
            sock.sendall(f"{own[0]}:{own[1]}\n".encode())
            while data := sock.recv(4096):
                sock.sendall(data)
            return
        if own[1] == 443:
            arrived("tls", own, self.client_address, name)
        head = b""
        try:
            while b"\r\n\r\n" not in head and (data := sock.recv(4096)):
                head += data
        except OSError:
            return
        host = next((line.split(b":", 1)[1].strip().decode(errors="replace")
                     for line in head.split(b"\r\n") if line.lower().startswith(b"host:")), None)
        if head:
            arrived("http", own, self.client_address, host)
            body = f"{own[0].removeprefix('::ffff:')} {host}\n".encode()
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)


class TcpServer(socketserver.ThreadingTCPServer):
    address_family, allow_reuse_address, daemon_threads, request_queue_size = socket.AF_INET6, True, True, 128


class UdpServer(socketserver.ThreadingUDPServer):
    address_family, allow_reuse_address, daemon_threads = socket.AF_INET6, True, True


def own_udp(handler, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = type("Udp", (UdpServer,), {"address_family": family})((address, port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def addresses():
    listed = json.loads(subprocess.run(["ip", "-j", "address"], check=True, capture_output=True).stdout)
    return [entry["local"] for link in listed for entry in link["addr_info"] if entry["scope"] == "global"]


# A datagram's answer must come from the address that it was sent to: one socket for each.
for address in addresses():
    own_udp(Names, address, 53)
    for port in (443, 9999):
        own_udp(Echo, address, port)
for port in (22, 80, 443, 853, 8080, 9999):
    threading.Thread(target=TcpServer(("::", port), Tcp).serve_forever, daemon=True).start()

signal.signal(signal.SIGTERM, lambda *_: (subprocess.run(["ip", "netns", "delete", NAMESPACE]), sys.exit()))
print(json.dumps({"ready": True}), flush=True)
while True:
    signal.pause()
