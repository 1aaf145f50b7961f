"""Two hosts on one machine: network namespaces with a cable between them, and what can go wrong with it.

All traffic stays inside namespaces that were made here. `why_not()` says why a machine cannot do it.
"""

import json
import os
import re
import shutil
import subprocess
import uuid

from relay import Relay

BITS = {"mbit": 1e6, "gbit": 1e9}


def tool(*arguments, check=True):
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def why_not():
    """None where namespaces can be made, else the reason in one line."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian package iproute2)"
    try:
        with TwoHosts():
            return None
    except RuntimeError as error:
        return f"network namespaces cannot be made here: {error}"


class TwoHosts:
    """Namespaces `a` (10.77.0.1) and `b` (10.77.0.2), each with loopback."""

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self):
        stem = f"ckptd-{uuid.uuid4().hex[:6]}"
        self.names = (f"{stem}-a", f"{stem}-b")
        self.relay, self.loses_by, self.losers = None, None, []

    def __enter__(self):
        try:
            for name in self.names:
                tool("ip", "netns", "add", name)
                tool("ip", "-n", name, "link", "set", "lo", "up")
            tool("ip", "-n", self.names[0], "link", "add", "eth0", "type", "veth",
                 "peer", "name", "eth0", "netns", self.names[1])
            self._set_up()
        except RuntimeError:
            self.__exit__()
            raise
        return self

    def _set_up(self):
        for name, address in zip(self.names, self.addresses):
            tool("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            tool("ip", "-n", name, "link", "set", "eth0", "up")

    def __exit__(self, *error):
        if self.relay:
            self.relay.stop()
        for name in self.names:
            tool("ip", "netns", "delete", name, check=False)

    def inside(self, host):
        """Words to put in front of a command that shall run on host 0 or 1."""
        return ("ip", "netns", "exec", self.names[host])

    def bytes_received(self, host):
        """So far, over the cable, headers included."""
        return int(tool(*self.inside(host), "cat", "/sys/class/net/eth0/statistics/rx_bytes").stdout)

    def connections(self, host, port):
        """Of each TCP connection to a port of a host, what the kernel says, such as bytes_received and minrtt."""
        listed = tool(*self.inside(host), "ss", "-tinHO", "state", "established", f"sport = :{port}").stdout
        return {line.split()[3]: {key: float(value) for key, value in re.findall(r"(\w+):([\d.]+)(?= |$)", line)}
                for line in listed.splitlines()}

    def cut(self):
        """Pulls the cable: nobody is told, packets just stop."""
        tool("ip", "-n", self.names[1], "link", "set", "eth0", "down")

    def mend(self):
        tool("ip", "-n", self.names[1], "link", "set", "eth0", "up")

    def limit(self, rate):
        """A slow link: `rate` as tc writes it ("50mbit"), in both directions."""
        # What passes in 4 ms may pass at once, else the shaper's clock limits fast links further.
        burst = max(256_000, int(BITS[rate[-4:]] * float(rate[:-4]) / 8 / 250))
        for name in self.names:
            tool("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf",
                 "rate", rate, "burst", str(burst), "latency", "50ms")

    def delay(self, milliseconds):
        """A long link: so late arrives each packet, in both directions, by netem or else by a relay here; the name
        of what does it. For daemons that start later. RuntimeError where neither can be made."""
        try:
            self._netem("delay", f"{milliseconds}ms", "limit", "100000")
            return "netem"
        except RuntimeError as error:
            why = str(error)
        ends = [name.replace("ckptd-", "").replace("-", "") for name in self.names]  # at most 15 bytes
        try:
            self.relay = Relay(ends, milliseconds / 1000)
        except OSError as error:
            raise RuntimeError(f"{why}; making interfaces of /dev/net/tun: {error}") from error
        tool("ip", "-n", self.names[0], "link", "delete", "eth0")
        for end, name in zip(ends, self.names):
            tool("ip", "link", "set", end, "netns", name, "name", "eth0")
            tool("ip", "-n", name, "link", "set", "eth0", "txqueuelen", "10000")
        self._set_up()
        return "relay"

    def lose(self, percent):
        """A lossy link, by netem or else by a packet filter; the name of what does it.

        RuntimeError where this kernel has neither."""
        why = []
        for method, lose in (("netem", lambda: self._netem("loss", f"{percent}%")),
                             ("nftables", lambda: self._filter(percent))):
            try:
                lose()
            except (RuntimeError, FileNotFoundError) as error:
                why.append(str(error))
                continue
            for name in self.names:  # else 64 KB would be one packet, and a load has few
                tool("ip", "-n", name, "link", "set", "eth0", "gso_max_segs", "1")
            self.loses_by, self.losers = method, [0, 1]
            return method
        raise RuntimeError("; ".join(why))

    def lose_first_to(self, host, port):
        """The first packet of the next connection to a port of a host. RuntimeError where this kernel cannot."""
        rules = ("add table inet loss; add chain inet loss in { type filter hook input priority 0; }; add rule inet loss in "
                 f"tcp dport {port} tcp flags & (syn|ack) == syn quota until 100 bytes counter drop")  # one has 60
        try:
            tool(*self.inside(host), "nft", rules)
        except FileNotFoundError as error:
            raise RuntimeError(str(error)) from error
        self.loses_by, self.losers = "nftables", [host]

    def lost(self):
        """How many packets were dropped on purpose so far."""
        if self.loses_by == "netem":
            shown = (tool("tc", "-n", name, "-s", "-j", "qdisc", "show", "dev", "eth0").stdout for name in self.names)
            return sum(json.loads(text)[0]["drops"] for text in shown)
        shown = (tool(*self.inside(host), "nft", "list", "table", "inet", "loss").stdout for host in self.losers)
        return sum(int(re.search(r"counter packets (\d+)", text)[1]) for text in shown)

    def _netem(self, *words):
        for name in self.names:
            tool("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "netem", *words)

    def _filter(self, percent):
        for host in (0, 1):
            rules = ("add table inet loss; add chain inet loss in { type filter hook input priority 0; }; "
                     f'add rule inet loss in iifname "eth0" numgen random mod 1000 < {int(percent * 10)} counter drop')
            tool(*self.inside(host), "nft", rules)
