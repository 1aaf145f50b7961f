"""Two hosts on one machine: network namespaces with a cable between them, and what can go wrong with it.

All traffic stays inside namespaces that were made here. `why_not()` says why a machine cannot do it.
"""

import os
import shutil
import subprocess
import uuid


BITS = {"mbit": 1e6, "gbit": 1e9}


def tool(*arguments, check=True):
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30)
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

    def __enter__(self):
        try:
            for name in self.names:
                tool("ip", "netns", "add", name)
                tool("ip", "-n", name, "link", "set", "lo", "up")
            tool("ip", "-n", self.names[0], "link", "add", "eth0", "type", "veth",
                 "peer", "name", "eth0", "netns", self.names[1])
            for name, address in zip(self.names, self.addresses):
                tool("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
                tool("ip", "-n", name, "link", "set", "eth0", "up")
        except RuntimeError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for name in self.names:
            tool("ip", "netns", "delete", name, check=False)

    def inside(self, host):
        """Words to put in front of a command that shall run on host 0 or 1."""
        return ("ip", "netns", "exec", self.names[host])

    def bytes_received(self, host):
        """So far, over the cable, headers included."""
        return int(tool(*self.inside(host), "cat", "/sys/class/net/eth0/statistics/rx_bytes").stdout)

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

    def lose(self, percent):
        """A lossy link, by netem or else by a packet filter; the name of what does it.

        RuntimeError where this kernel has neither."""
        why = []
        for method in (self._netem, self._filter):
            try:
                return method(percent)
            except (RuntimeError, FileNotFoundError) as error:
                why.append(str(error))
        raise RuntimeError("; ".join(why))

    def _netem(self, percent):
        for name in self.names:
            tool("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "netem", "loss", f"{percent}%")
        return "netem"

    def _filter(self, percent):
        for host in (0, 1):
            rules = ("add table inet loss; add chain inet loss in { type filter hook input priority 0; }; "
                     f'add rule inet loss in iifname "eth0" numgen random mod 1000 < {int(percent * 10)} drop')
            tool(*self.inside(host), "nft", rules)
        return "nftables"
