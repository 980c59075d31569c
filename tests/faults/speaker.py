"""The wire as an attacker speaks it: hellos, frames and control messages by hand, and a worker that is none.

docs/formats/wire.md and src/butterfly/cluster/control/control.proto say what the bytes mean.
"""

import functools
import os
import re
import socket
import ssl
import struct
import threading

from models import ROOT

CONTROL, DATA, JOIN, STATUS, PROBE = 1, 2, 3, 4, 5
LZ4 = 1
FRAME = struct.Struct("<IHHIIQQI")
POLYNOMIAL = 0x82f63b78


def _byte(crc):
    for _ in range(8):
        crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc


TABLE = [_byte(value) for value in range(256)]


def crc32c(data, crc=0):
    crc ^= 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xff]
    return crc ^ 0xffffffff


def hello(role, label=b"", version=None, session=None):
    label = label.encode() if isinstance(label, str) else label
    return struct.pack("<8sHHBBH16s64s", b"BFLYwire", protocol() if version is None else version, 96, role, len(label), 0,
                       session or os.urandom(16), label)


@functools.lru_cache(maxsize=None)
def protocol():
    """The version that this program speaks."""
    with open(os.path.join(ROOT, "src/butterfly/wire/channel/frame.h"), encoding="utf-8") as code:
        return int(re.search(r"kProtocolVersion = (\d+);", code.read())[1])


def frame_header(meta_bytes, payload_bytes, body_crc, codec=0, tag=0):
    flags = codec | 2 << 4 if codec else 0  # elements of 4 bytes
    header = FRAME.pack(0x4d524642, 0, flags, 0, meta_bytes, tag, payload_bytes, body_crc)
    return header + struct.pack("<I", crc32c(header))


def frame(meta=b"", payload=b"", codec=0, tag=0):
    return frame_header(len(meta), len(payload), crc32c(payload, crc32c(meta)), codec, tag) + meta + payload


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number, value):
    """One field of a protobuf message: a number, a float, bytes, or a text, which need not be UTF-8."""
    if isinstance(value, bool) or isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(data):
    """{number: [value]} of a message."""
    place, found = 0, {}

    def number():
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while place < len(data):
        key = number()
        if key & 7 == 0:
            value = number()
        elif key & 7 == 1:
            value, place = data[place:place + 8], place + 8
        else:
            size = number()
            value, place = data[place:place + size], place + size
        found.setdefault(key >> 3, []).append(value)
    return found


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def credentials(folder, server=False):
    """TLS as a node with these files speaks it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(os.path.join(folder, "node.pem"), os.path.join(folder, "node.key"))
    context.load_verify_locations(os.path.join(folder, "ca.pem"))
    return context


def exactly(one, size):
    data = b""
    while len(data) < size:
        more = one.recv(size - len(data))
        if not more:
            raise ConnectionError(f"{len(data)} of {size} bytes came")
        data += more
    return data


def call(address, role, label="attack", session=None, folder=None, source=None, timeout=10):
    """A connection whose hello was answered."""
    one = socket.create_connection(split(address), timeout=timeout, source_address=(source, 0) if source else None)
    if folder:
        one = credentials(folder).wrap_socket(one)
    one.sendall(hello(role, label, session=session))
    exactly(one, 16)
    return one


def read_frame(one):
    """(meta, payload)"""
    header = exactly(one, 40)
    _, _, _, _, meta, _, payload, _ = FRAME.unpack(header[:36])
    return exactly(one, meta), exactly(one, payload)


def announce(coordinator, address, source=None, folder=None):
    """Says that a worker listens there."""
    with call(coordinator, JOIN, address, folder=folder, source=source):
        pass


# Numbers of control.proto's ControlMessage.
WORKER_HELLO, FAILURE, ASSIGN, READY, PING, PONG, RELEASE, RELEASED = 1, 2, 3, 4, 5, 6, 7, 8
STATUS_WANTED, MEASURE_LINKS, WORKER_STATUS, COORDINATOR_STATUS, LINKS, REBALANCED, MEASURING = 12, 13, 14, 15, 16, 18, 19


def node(name="fake", memory=1 << 33, isa="avx2"):
    speeds = field(5, 10.0) + field(6, 50.0) + field(7, 100.0)
    return field(1, name) + field(2, isa) + field(3, 1) + field(4, memory) + speeds


class FakeWorker:
    """Listens like a worker; `talk` gets (connection, role, label) of every connection, on a thread of its own."""

    def __init__(self, talk, address="127.0.0.1:0", version=None, folder=None):
        self.talk, self.version, self.folder = talk, version, folder
        self.listener = socket.create_server(split(address), backlog=512)
        self.address = "%s:%d" % self.listener.getsockname()
        self.met = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                one, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one):
        try:
            with one if not self.folder else credentials(self.folder, server=True).wrap_socket(one, server_side=True) as one:
                heard = exactly(one, 96)
                role, size = heard[12], heard[13]
                self.met.append(role)
                one.sendall(struct.pack("<8sH6x", b"BFLYhere", protocol() if self.version is None else self.version))
                self.talk(one, role, heard[32:32 + size])
        except (OSError, ConnectionError, ValueError):
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def echo(one):
    """Answers probes of a link."""
    while True:
        header = exactly(one, 40)
        _, _, _, _, meta, tag, payload, _ = FRAME.unpack(header[:36])
        exactly(one, meta + payload)
        one.sendall(frame(tag=tag))


def say(one, number, body=b""):
    one.sendall(frame(meta=field(number, body)))


def member(name="fake", identity=None, on_assign=None, described=None):
    """What a FakeWorker says that is a member and does no work: answers pings, and goes when it is released."""
    identity = identity or os.urandom(16)

    def talk(one, role, _):
        if role != CONTROL:
            while one.recv(65536):  # and no answer
                pass
            return
        say(one, WORKER_HELLO, field(1, "0") + field(2, described or node(name)) + field(4, identity))
        while True:
            heard = fields(read_frame(one)[0])
            if PING in heard:
                say(one, PONG, field(1, fields(heard[PING][0]).get(1, [0])[0]))
            elif RELEASE in heard:
                say(one, RELEASED)
                return
            elif ASSIGN in heard and on_assign:
                on_assign(one, fields(heard[ASSIGN][0]))
    return talk
