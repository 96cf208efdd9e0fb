"""What the owner of a machine allows a node: when it may train, and how much it may send and receive a day.

Looked at between two rounds. A node that rests stays online and answers its peers; one whose bytes of the day are used
up goes offline until midnight UTC and trains on by itself.
"""

import contextlib
import json
import time

from waggle.core.clock import Clock
from waggle.core.config import Config
from waggle.core.errors import RunError
from waggle.core.files import write_atomic
from waggle.net.pace import Pace
from waggle.node.runfolder import RunFolder

DAY_S = 24 * 3600


class Host:
    """Example: `host = Host(folder, config, clock); host.rests()`."""

    def __init__(self, folder: RunFolder, config: Config, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._hours, self._day_bytes = config.run.hours, int(config.net.day_mb * 1e6)
        self.pace = Pace(clock, 1000 * config.net.upload_kb_s)
        self._counted_bytes = 0
        self._day, self._used_bytes = self._read()

    def rests(self) -> str:
        """Why no round may begin now, or nothing."""
        if self._folder.pause_file.exists():
            return "paused; `waggle pause --off` lets it go on"
        if self._hours and not within(self._hours, time.strftime("%H:%M", time.localtime(self._clock.now_s()))):
            return f"outside of its hours, {self._hours}"
        return ""

    def may_talk(self) -> bool:
        """Whether bytes of the day are left. What has been used is written down."""
        if not self._day_bytes:
            return True
        day = int(self._clock.now_s() // DAY_S)
        if day != self._day:
            self._day, self._used_bytes = day, 0
        total_bytes = self.pace.meter()
        self._used_bytes += total_bytes - self._counted_bytes
        self._counted_bytes = total_bytes
        with contextlib.suppress(RunError):  # a full disk: what was used is written down the next time
            write_atomic(self._folder.usage_file, json.dumps({"day": day, "bytes": self._used_bytes}).encode())
        return self._used_bytes < self._day_bytes

    def _read(self) -> tuple[int, int]:
        """Day and bytes that were written down last; a damaged file is none."""
        try:
            known = json.loads(self._folder.usage_file.read_bytes())
            return int(known["day"]), int(known["bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1, 0


def within(hours: str, now: str) -> bool:
    """Whether a time of day lies between two; past midnight where the second is earlier.

    Example: `within("22:00-07:00", "23:30")`.
    """
    first, _, last = hours.partition("-")
    return first <= now < last if first <= last else now >= first or now < last
