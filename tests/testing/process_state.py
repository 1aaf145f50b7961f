"""Facts that the system gives about processes."""

import os


def runs(pid):
    """Whether there is such a process. One that ended counts as gone before somebody reaps it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is read
        return False


def open_links(pid):
    """Where the descriptors of a process lead. One that is closed meanwhile leads nowhere."""
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    return links
