"""What the system says about other processes."""


def runs(pid):
    """Whether there is such a process. One that ended counts as gone before somebody reaps it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is read
        return False
