"""An internet in one process: hosts with lines that are slow, far, lossy, cut or behind address translation.

    python benchmarks/internet.py

A host is a network namespace with loopback and one tun device, whose other end this process holds: a thread reads every
packet, does to it what the lines of both ends do, and writes it to where it goes. Linux alone, as an ordinary user
where the system lets users make namespaces and opens /dev/net/tun to them. Processes are started inside by
`python -m waggle.net.namespace enter PID COMMAND`. When this process ends, however that is, so do the holders of the
namespaces, and the devices with them.

A line is a queue of bounded length that drops its tail, then a delay; loss strikes on the way out, after the queue, as
it does on a radio link. Translation is port-restricted (RFC 4787): what a host sends from one port leaves by one port,
to whomever it goes, and only who was sent to within a minute may answer. All hosts behind translation have the same
address inside, as at homes. Left out: fragments, IPv6, jitter, and translation that asks for a port anew for every
destination.

Run as a program it measures its own lines with packets of UDP, so that what others measure on them can be believed.
"""

import contextlib
import fcntl
import heapq
import itertools
import json
import os
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waggle.net.namespace import NOT_ALLOWED, loopback_only

SET_DEVICE, TUN_NO_INFO = 0x400454CA, 0x1001
INSIDE, OUTSIDE = "192.168.1.2", "10.0.0.{}"
UDP, SOURCE, TARGET = 17, 12, 16
"""The protocol's number, and where an IPv4 header has its addresses."""
MAPPED_S = 60.0
FIRST_MAPPED = 20001
LOOK_S, READY_S = 0.02, 10.0
PACKET_BYTES = 1 << 16


@dataclass(frozen=True)
class Line:
    """What connects a host. Example: `Line(delay_s=0.5, loss=0.1, up_bytes_s=8000, down_bytes_s=8000)`."""

    delay_s: float = 0.0
    """What a packet spends on it, in either direction; between two hosts it spends that of both."""
    loss: float = 0.0
    """Share of packets out of this host that get lost."""
    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    """0 is without a limit."""
    queue_bytes: int = 24_000
    """What may wait at either end."""
    behind_nat: bool = False


class Pipe:
    """One direction of a line: when it will have carried a packet, and how many bytes it has."""

    def __init__(self, bytes_s: float, queue_bytes: int) -> None:
        self._bytes_s, self._queue_bytes = bytes_s, queue_bytes
        self._free_s = 0.0
        self.total_bytes = self.overflowed = 0

    def take(self, size_bytes: int, now_s: float) -> float | None:
        """When the packet is through, or None where the queue is full."""
        if self._bytes_s:
            start_s = max(now_s, self._free_s)
            if (start_s - now_s) * self._bytes_s + size_bytes > self._queue_bytes:
                self.overflowed += 1
                return None
            self._free_s = now_s = start_s + size_bytes / self._bytes_s
        self.total_bytes += size_bytes
        return now_s


class Nat:
    """Address translation of one host, which has an outer address of its own."""

    def __init__(self, outer: str) -> None:
        self._outer, self._inner = socket.inet_aton(outer), socket.inet_aton(INSIDE)
        self._outer_ports: dict[int, int] = {}
        self._inner_ports: dict[int, int] = {}
        self._used_s: dict[int, float] = {}
        self._sent_s: dict[tuple[int, bytes], float] = {}
        """When an outer port last sent to an endpoint (address and port)."""
        self._next = FIRST_MAPPED

    def out(self, packet: bytes, now_s: float) -> bytes | None:
        """What leaves, or None for what is not translated."""
        if not is_udp(packet):
            return None
        inner = int.from_bytes(endpoint(packet, SOURCE)[4:], "big")
        outer = self._outer_ports.get(inner)
        if outer is None or now_s - self._used_s[outer] > MAPPED_S:
            self._inner_ports.pop(outer or 0, None)
            outer = self._outer_ports[inner] = self._next
            self._inner_ports[outer], self._next = inner, self._next + 1
        self._used_s[outer] = self._sent_s[outer, endpoint(packet, TARGET)] = now_s
        return translated(packet, SOURCE, self._outer, outer)

    def into(self, packet: bytes, now_s: float) -> bytes | None:
        """What comes in, or None for what nobody inside has asked for."""
        if not is_udp(packet):
            return None
        outer = int.from_bytes(endpoint(packet, TARGET)[4:], "big")
        sent_s = self._sent_s.get((outer, endpoint(packet, SOURCE)))
        inner = self._inner_ports.get(outer)
        if inner is None or sent_s is None or now_s - sent_s > MAPPED_S:
            return None
        return translated(packet, TARGET, self._inner, inner)


def is_udp(packet: bytes) -> bool:
    """Whether it is a whole packet of UDP."""
    return packet[9] == UDP and not int.from_bytes(packet[6:8], "big") & 0x1FFF


def _port_at(packet: bytes, which: int) -> int:
    return 4 * (packet[0] & 15) + (which == TARGET) * 2


def endpoint(packet: bytes, which: int) -> bytes:
    """Address and port of its source or its target."""
    at = _port_at(packet, which)
    return packet[which : which + 4] + packet[at : at + 2]


def translated(packet: bytes, which: int, address: bytes, port: int) -> bytes:
    """The packet with another source or target, and the sums that go with it (RFC 1624)."""
    at, udp_sum = _port_at(packet, which), 4 * (packet[0] & 15) + 6
    old, new = endpoint(packet, which), address + port.to_bytes(2, "big")
    changed = bytearray(packet)
    changed[10:12] = _summed(packet[10:12], old[:4], new[:4])
    if any(packet[udp_sum : udp_sum + 2]):
        changed[udp_sum : udp_sum + 2] = _summed(packet[udp_sum : udp_sum + 2], old, new)
    changed[which : which + 4], changed[at : at + 2] = new[:4], new[4:]
    return bytes(changed)


def _summed(checksum: bytes, old: bytes, new: bytes) -> bytes:
    words = f"!{len(old) // 2}H"
    total = ~int.from_bytes(checksum, "big") & 0xFFFF
    total += sum(~word & 0xFFFF for word in struct.unpack(words, old)) + sum(struct.unpack(words, new))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF or 0xFFFF).to_bytes(2, "big")


@dataclass(eq=False)
class Host:
    """A namespace with its device and its line."""

    number: int
    line: Line
    holder: "subprocess.Popen[bytes]"
    talk: socket.socket
    """Its end ends the holder."""
    device: int
    nat: Nat | None
    up: Pipe
    down: Pipe
    counts: Counter[str] = field(default_factory=Counter)
    """Packets that did not arrive, by why: `lost`, `cut`, `refused` by translation, to `nowhere`."""
    first_s: float = 0.0
    """When it first sent after this was set to 0, in Unix time."""

    @property
    def address(self) -> str:
        """Where others find it."""
        return OUTSIDE.format(self.number)

    def inside(self, command: Sequence[str]) -> list[str]:
        """A command that is this one on this host."""
        return [sys.executable, "-m", "waggle.net.namespace", "enter", str(self.holder.pid), *command]


class Internet:
    """Hosts and what is between them. Example: `with Internet(seed=1) as net: host = net.add(Line(loss=0.1))`."""

    def __init__(self, seed: int = 0) -> None:
        import numpy as np

        self.hosts: list[Host] = []
        self._rng = np.random.default_rng(seed)
        self._halves: dict[int, int] = {}
        """The part of a host, by number, while the net is cut."""
        self._by_address: dict[bytes, Host] = {}
        self._due: list[tuple[float, int, Callable[[Host, bytes, float], None], Host, bytes]] = []
        self._order = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._relay, name="internet", daemon=True)

    def __enter__(self) -> "Internet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for host in self.hosts:
            host.talk.close()
            os.close(host.device)
            host.holder.kill()
            host.holder.wait()
        self._selector.close()

    def add(self, line: Line) -> Host:
        """A new host.

        Raises:
            OSError: this system does not allow it.
        """
        number = len(self.hosts) + 1
        address = OUTSIDE.format(number)
        mine, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, "hold", str(theirs.fileno()), INSIDE if line.behind_nat else address]
            holder = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        mine.settimeout(READY_S)
        _, descriptors, _, _ = socket.recv_fds(mine, 16, 1)
        if not descriptors:
            mine.close()
            refused = holder.wait(READY_S) == NOT_ALLOWED
            raise OSError("no network namespace can be made here" if refused else "no tun device can be made here")
        up, down = (Pipe(rate, line.queue_bytes) for rate in (line.up_bytes_s, line.down_bytes_s))
        nat = Nat(address) if line.behind_nat else None
        host = Host(number, line, holder, mine, descriptors[0], nat, up, down)
        os.set_blocking(host.device, False)
        self.hosts.append(host)
        self._by_address[socket.inet_aton(address)] = host
        self._selector.register(host.device, selectors.EVENT_READ, host)
        return host

    def cut(self, *parts: Iterable[Host]) -> None:
        """Nothing goes from one part to another from now on."""
        self._halves = {host.number: number for number, part in enumerate(parts) for host in part}

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        self._halves = {}

    def _relay(self) -> None:
        while not self._ended.is_set():
            wait_s = self._due[0][0] - time.monotonic() if self._due else LOOK_S
            for key, _ in self._selector.select(max(0.0, min(wait_s, LOOK_S))):
                self._read(key.data)
            while self._due and self._due[0][0] <= time.monotonic():
                due_s, _, then, host, packet = heapq.heappop(self._due)
                then(host, packet, due_s)

    def _later(self, due_s: float, then: Callable[[Host, bytes, float], None], host: Host, packet: bytes) -> None:
        heapq.heappush(self._due, (due_s, next(self._order), then, host, packet))

    def _read(self, host: Host) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := os.read(host.device, PACKET_BYTES):
                if packet[0] >> 4 == 4 and len(packet) >= 28:
                    self._leave(host, packet, time.monotonic())

    def _leave(self, host: Host, packet: bytes, now_s: float) -> None:
        """A packet out of a host goes up its line."""
        target = self._by_address.get(packet[TARGET : TARGET + 4])
        sent = host.nat.out(packet, now_s) if host.nat else packet
        if target is None or target is host or sent is None:
            host.counts["nowhere"] += 1
            return
        host.first_s = host.first_s or time.time()
        through_s = host.up.take(len(sent), now_s)
        if through_s is None:
            return
        if self._rng.random() < host.line.loss:
            host.counts["lost"] += 1
            return
        self._later(through_s + host.line.delay_s + target.line.delay_s, self._arrive, target, sent)

    def _arrive(self, host: Host, packet: bytes, now_s: float) -> None:
        """A packet is at the other end of a host's line, and comes down if it may."""
        source = self._by_address[packet[SOURCE : SOURCE + 4]]
        if self._halves.get(source.number) != self._halves.get(host.number):
            host.counts["cut"] += 1
            return
        let_in = host.nat.into(packet, now_s) if host.nat else packet
        if let_in is None:
            host.counts["refused"] += 1
            return
        if (through_s := host.down.take(len(let_in), now_s)) is not None:
            self._later(through_s, self._deliver, host, let_in)

    def _deliver(self, host: Host, packet: bytes, now_s: float) -> None:
        with contextlib.suppress(OSError):  # a device whose queue is full drops it, as any does
            os.write(host.device, packet)


def hold(descriptor: int, address: str) -> int:
    """The holder: make the namespace and its device, hand the device over, and stay until the other end is gone."""
    talk = socket.socket(fileno=descriptor)
    if not loopback_only():
        return NOT_ALLOWED
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, SET_DEVICE, struct.pack("16sH22x", b"tun0", TUN_NO_INFO))
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv6/conf/tun0/disable_ipv6").write_text("1")
    for words in (f"addr add {address}/24 dev tun0", "link set tun0 up", "route add default dev tun0"):
        subprocess.run(["ip", *words.split()], check=True)
    socket.send_fds(talk, [b"ready"], [device])
    os.close(device)
    talk.recv(1)
    return 0


def echo(port: int) -> int:
    """Send every packet back to where it came from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind(("0.0.0.0", port))
        while True:
            data, where = door.recvfrom(PACKET_BYTES)
            door.sendto(data, where)


def probe(address: str, port: int, num: int, size_bytes: int, gap_s: float, wait_s: float) -> dict[str, Any]:
    """What comes back of so many packets: how many, after how long (s), and over how long."""
    came: dict[int, float] = {}
    sent: list[float] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        first_s = time.monotonic()
        end_s = first_s + num * gap_s + wait_s
        while (now_s := time.monotonic()) < end_s and len(came) < num:
            if len(sent) < num and now_s >= first_s + len(sent) * gap_s:
                door.sendto(len(sent).to_bytes(4, "big").ljust(size_bytes, b"."), (address, port))
                sent.append(now_s)
            door.settimeout(max(0.001, min(gap_s, end_s - now_s)))
            with contextlib.suppress(TimeoutError):
                number = int.from_bytes(door.recv(PACKET_BYTES)[:4], "big")
                came.setdefault(number, time.monotonic())
    trips = sorted(at_s - sent[number] for number, at_s in came.items())
    spent_s = max(came.values()) - min(came.values()) if came else 0.0
    return {"back": len(came) / num, "trip_s": statistics.median(trips) if trips else None, "spent_s": spent_s}


CASES = {
    "50 ms, 1 % a way": (Line(0.0125, 0.01), Line(0.0125, 0.01), (400, 200, 0.005, 1.0)),
    "2 s, 10 % a way": (Line(0.5, 0.1), Line(0.5, 0.1), (400, 200, 0.005, 4.0)),
    "64 kbit/s": (Line(0, 0, 8000, 8000), Line(), (60, 472, 0.01, 5.0)),
    "from behind translation": (Line(behind_nat=True), Line(), (50, 500, 0.01, 1.0)),
    "to behind translation": (Line(), Line(behind_nat=True), (50, 500, 0.01, 1.0)),
}
"""Lines of who asks and of who echoes; number, size and gap of the packets, and how long to wait for the last."""


def try_out(asking: Line, answering: Line, numbers: tuple[int, int, float, float]) -> str:
    """Measure two lines."""
    with Internet(seed=1) as net:
        here, there = net.add(asking), net.add(answering)
        server = subprocess.Popen(there.inside([sys.executable, __file__, "echo", "4000"]))
        try:
            time.sleep(0.5)
            command = [sys.executable, __file__, "probe", there.address, "4000", *map(str, numbers)]
            told = subprocess.run(here.inside(command), capture_output=True, timeout=60, check=True).stdout
        finally:
            server.kill()
            server.wait()
        row = json.loads(told)
        rate = f", {here.down.total_bytes / row['spent_s'] / 125:.0f} kbit/s" if asking.down_bytes_s else ""
        trip = f" after {1000 * row['trip_s']:.1f} ms" if row["back"] else ""
        return f"{row['back']:.1%} came back{trip}{rate}"


def main() -> int:
    """Measure, or be one of the processes that this takes."""
    word, *rest = sys.argv[1:] or [""]
    if word == "hold":
        return hold(int(rest[0]), rest[1])
    if word == "echo":
        return echo(int(rest[0]))
    if word == "probe":
        print(json.dumps(probe(rest[0], int(rest[1]), int(rest[2]), int(rest[3]), float(rest[4]), float(rest[5]))))
        return 0
    for name, case in CASES.items():
        print(f"{name:24s} {try_out(*case)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
