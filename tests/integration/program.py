"""A child process that tests talk to, line by line."""

import subprocess
import sys


class Program:
    """A child process that runs Python source and says each step it has reached on a line.

    With `modules`, of an environment with OMP_NUM_THREADS=1, it begins with these imported."""

    def __init__(self, source, *arguments, environment=None, modules=()):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = ["-c", source, *map(str, arguments)]
        if modules:
            import warm  # GPU checks, which use this too, are packed without it

            self.process = warm.spawn(command, environment, modules, **pipes)
        else:
            self.process = subprocess.Popen([sys.executable, *command], env=environment, text=True, bufsize=1, **pipes)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        return self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait()}"
        return line.strip()

    def finish(self, seconds=60):
        """Its exit status, once it has read all that it was told."""
        stdin, self.process.stdin = self.process.stdin, None
        stdin.close()
        return self.process.wait(seconds)
