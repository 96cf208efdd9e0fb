"""Who may come in, and how often: what strangers cost is bounded, however many keys they make.

Keys cost nothing and hosts do, so it is hosts that have an allowance: of connections, looked at before a handshake
costs anything, and of requests, which wait for their turn. Who was dropped for what it did is kept out for a while,
longer each time, and uses up its host's allowance faster. Of IPv6 a host is a /64, which is what one customer gets.
"""

import ipaddress
from collections import Counter, OrderedDict

from waggle.core.clock import Clock
from waggle.net.allowance import Allowance

KNOCKS_PER_S, KNOCKS_AT_ONCE = 1.0, 32.0
"""Connections that a host may open, on average and in a burst."""
ALL_KNOCKS_PER_S, ALL_KNOCKS_AT_ONCE = 4.0, 64.0
"""The same for all hosts together: links that are there stay, and a node dials out whatever the crowd at its door."""
RUDE_KNOCKS, OUT_KNOCKS = 16.0, 4.0
"""What a peer costs its host, in connections, when it is dropped for what it did, and when it comes back too early."""
MOST_KNOCKS = 60.0
"""A host is kept waiting for no more than this."""
REQUESTS_PER_S, REQUESTS_AT_ONCE = 20.0, 100.0
"""Requests of a host that are answered, on average and in a burst; others wait."""
MAX_DEBT_S = 10.0
"""How long a request may have to wait; others are not answered."""
OUT_S, MAX_OUT_S = 60.0, 3600.0
"""How long a peer is kept out the first time, and at most; after so long without fault it is forgiven."""
_REMEMBERED = 1024


class _Host:
    def __init__(self, clock: Clock) -> None:
        self.knocks = Allowance(KNOCKS_PER_S, KNOCKS_AT_ONCE, clock)
        self.requests = Allowance(REQUESTS_PER_S, REQUESTS_AT_ONCE, clock)


class Guard:
    """Example: `guard.lets_in("192.0.2.7")`, `guard.blame(peer, "192.0.2.7", "flood")`.

    What is known of hosts and peers is bounded; the longest unheard of is forgotten first.
    """

    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        """Whom a node dropped or turned away, by reason, with whatever else is counted of its network."""
        self._clock = clock
        self._knocks = Allowance(ALL_KNOCKS_PER_S, ALL_KNOCKS_AT_ONCE, clock)
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self._out: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """How often a peer was kept out, and until when."""

    def trusts(self, host: str) -> bool:
        """Whether a connection from there need not prove first that it comes from there, so that nobody can use up
        the allowance of somebody else's host.
        """
        known = self._hosts.get(_customer(host))
        left = known.knocks.left if known else KNOCKS_AT_ONCE
        return left > KNOCKS_AT_ONCE / 2 and self._knocks.left > ALL_KNOCKS_AT_ONCE / 2

    def lets_in(self, host: str) -> bool:
        """Whether a connection from there may come about."""
        knocks = self._host(host).knocks
        if knocks.left >= 1 and self._knocks.take():
            return knocks.take()
        self.counts["too-many-knocks"] += 1
        return False

    def request_wait_s(self, host: str) -> float:
        """Count a request from there. Returns how long it has to wait; -1, without counting, if that is too long."""
        requests = self._host(host).requests
        return requests.charge(1.0) if requests.left > -MAX_DEBT_S * REQUESTS_PER_S else -1.0

    def blame(self, peer: bytes, host: str, reason: str) -> None:
        """Count what a peer did, and keep it out for a while."""
        self.counts[reason] += 1
        now_s = self._clock.passed_s()
        times, before_s = self._out.pop(peer, (0, 0.0))
        times = 1 if now_s - before_s > MAX_OUT_S else times + 1
        self._out[peer] = times, now_s + min(MAX_OUT_S, OUT_S * 2 ** min(times - 1, 10))
        if len(self._out) > _REMEMBERED:
            self._out.popitem(last=False)
        self._charge(host, RUDE_KNOCKS)

    def out_s(self, peer: bytes) -> float:
        """For how many seconds a peer is still kept out; 0 where it is welcome."""
        return max(0.0, self._out.get(peer, (0, 0.0))[1] - self._clock.passed_s())

    def kept_out(self) -> set[bytes]:
        """Peers that are kept out now, and are not to be dialled either."""
        return {peer for peer in self._out if self.out_s(peer)}

    def keeps_out(self, peer: bytes, host: str) -> float:
        """The same, of one that has come in from there in spite of it, which its host pays for."""
        if left_s := self.out_s(peer):
            self.counts["kept-out"] += 1
            self._charge(host, OUT_KNOCKS)
        return left_s

    def _charge(self, host: str, cost: float) -> None:
        knocks = self._host(host).knocks
        knocks.charge(min(cost, max(0.0, MOST_KNOCKS + knocks.left)))

    def _host(self, host: str) -> _Host:
        name = _customer(host)
        known = self._hosts.pop(name, None) or _Host(self._clock)
        self._hosts[name] = known
        if len(self._hosts) > _REMEMBERED:
            self._hosts.popitem(last=False)
        return known


def _customer(host: str) -> str:
    """A host as far as it is somebody's: an IPv4 address, a /64 of IPv6, or what it is called."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
