//! What a guest can reach, found out by trying.

/// Answers what became of an attempt:
///
/// | question | answer |
/// |---|---|
/// | `tcp HOST PORT` | `open BANNER`, or `closed` |
/// | `http HOST PORT NAME` | what the server there said to a request for NAME, or `closed` |
/// | `https HOST NAME` | the same over TLS, with that server name |
/// | `udp ADDRESS PORT` | `echo`, or `silent` |
/// | `ping ADDRESS` | the same; needs root |
/// | `resolve NAME` | addresses, or `unknown` |
/// | `hold ADDRESS PORT` | `held N`: a connection that stays open |
/// | `use N` | `alive` if that still passes a line, else `cut` |
/// | `send ADDRESS PORT MIB` | `sent MIB` once a server that echoes has sent all of it back |
/// | `flood ADDRESS PORT MIB` | `done`: so much by UDP, whether it arrives or not |
///
/// Questions with `; ` between them are tried at once, and answered in their order in the same way.
pub const REACHER: &str = r#"
import socket, ssl, struct
TIMEOUT = 8
held = []
def dial(host, port):
    sock = socket.create_connection((host, int(port)), timeout=TIMEOUT)
    return sock
def said(sock, name):
    sock.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
    whole = b""
    while piece := sock.recv(4096):
        whole += piece
    status, _, body = whole.partition(b"\r\n\r\n")
    return body.decode().strip() if b" 200 " in status.split(b"\r\n")[0] else status.split(b"\r\n")[0].decode() or "closed"
def tcp(host, port):
    with dial(host, port) as sock:
        return "open " + sock.recv(100).decode().strip()
def http(host, port, name):
    with dial(host, port) as sock:
        return said(sock, name)
def https(host, name):
    context = ssl._create_unverified_context()
    with dial(host, 443) as sock, context.wrap_socket(sock, server_hostname=name) as sock:
        return said(sock, name)
def udp(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        for _ in range(2):
            try:
                sock.sendto(b"hello", (address, int(port)))
                return "echo" if sock.recv(100) == b"hello" else "something else"
            except TimeoutError:
                pass
    return "silent"
def ping(address):
    data = struct.pack("!BBHHH", 8, 0, 0, 7, 7) + b"sandpiper"
    total = sum(struct.unpack("!%dH" % (len(data + b"\0") // 2), data + b"\0"))
    total = (total >> 16) + (total & 0xffff)
    data = data[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xffff) + data[4:]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        sock.settimeout(3)
        sock.sendto(data, (address, 0))
        while True:
            packet, peer = sock.recvfrom(200)
            if peer[0] == address and packet[20] == 0:
                return "echo"
def resolve(name):
    found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    return " ".join(sorted({entry[4][0] for entry in found}))
def hold(address, port):
    sock = dial(address, port)
    sock.recv(100)
    held.append(sock)
    return f"held {len(held) - 1}"
def use(number):
    sock = held[int(number)]
    try:
        sock.sendall(b"still there?\n")
        return "alive" if sock.recv(100) == b"still there?\n" else "cut"
    except OSError:
        return "cut"
def send(address, port, mib):
    left = int(mib) << 20
    with dial(address, port) as sock:
        sock.recv(100)
        writer = threading.Thread(target=sock.sendall, args=(bytes(left),))
        writer.start()
        while left and (piece := sock.recv(1 << 16)):
            left -= len(piece)
        writer.join()
    return "closed" if left else f"sent {mib}"
def flood(address, port, mib):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        for _ in range(int(mib) << 10):
            try:
                sock.sendto(bytes(1024), (address, int(port)))
            except OSError:
                pass
    return "done"
FAILED = {"udp": "silent", "ping": "silent", "resolve": "unknown"}
def attempt(question):
    verb, *words = question.split()
    try:
        return globals()[verb](*words)
    except socket.gaierror:
        return "unknown" if verb == "resolve" else "closed"
    except OSError:
        return FAILED.get(verb, "closed")
def handle(questions):
    answers = {}
    def find_out(index, question):
        answers[index] = attempt(question)
    threads = [threading.Thread(target=find_out, args=entry) for entry in enumerate(questions.split("; "))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "; ".join(answers[index] for index in range(len(threads)))
answer(handle)
"#;
