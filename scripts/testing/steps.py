"""Steps of a test run. Each names the steps that it needs; of those whose needs are met the first of the plan run, a few
at once.

    plan -> run_all -> for each step a thread: work(Job) -> Job.run(COMMAND) ... -> Outcome

A step of which a need failed does not run, and counts as failed.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Callable

from outcome import Outcome

# Of a failed command so many lines are shown; all of them are in its log.
TAIL = 120
KILL_AFTER = 30


@dataclass
class Step:
    name: str
    work: Callable[["Job"], None]
    # Names of the steps that make what this one takes.
    needs: tuple = ()
    # How far it gives way to the steps beside it, as in nice(1).
    nice: int = 0
    # Names of steps that it must not run beside: it waits for the ends of those that are run, however they end.
    after: tuple = ()
    # How long it takes at most on a slow machine: one that would not end in time is left out. Without, it always runs.
    minutes: float = 0


@dataclass
class Result:
    step: Step
    outcome: Outcome
    began: float
    seconds: float


class Failed(Exception):
    """A command of a step failed in a way that ends the step."""


class Job:
    """A step that runs: what its work calls."""

    def __init__(self, step, folder, deadline=None):
        self.step, self.outcome, self.deadline = step, Outcome(), deadline
        self.log = os.path.join(folder, re.sub(r"[^a-z0-9]+", "-", step.name.lower()).strip("-") + ".log")

    def say(self, text):
        say("%s: %s" % (self.step.name, text))

    def run(self, argv, minutes, show=None, env=None):
        """Runs a command to its end; its exit status and lines. Ended after that many minutes: status None.

        Lines that `show` matches are shown as they come.
        """
        lines = []
        with open(self.log, "a", buffering=1) as log:
            process = subprocess.Popen(["nice", "-n", str(self.step.nice), *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True, errors="replace", env={**os.environ, **(env or {})},
                                       process_group=0)
            running.add(process)
            expired = threading.Event()

            def expire():
                expired.set()
                end(process)
            timer = threading.Timer(minutes * 60, expire)
            timer.start()
            try:
                for line in process.stdout:
                    log.write(line)
                    lines.append(line.rstrip("\n"))
                    if show and re.search(show, line):
                        self.say(line.rstrip())
                status = process.wait()
            finally:
                process.stdout.close()
                timer.cancel()
                running.discard(process)
        return (None if expired.is_set() else status), lines

    def must(self, argv, minutes, show=None, env=None):
        """Runs a command that must succeed; the lines that it printed."""
        status, lines = self.run(argv, minutes, show, env)
        if status != 0:
            self.show_end(lines)
            raise Failed("took longer than %g minutes" % minutes if status is None else "exit status %d" % status)
        return lines

    def show_end(self, lines):
        for line in lines[-TAIL:]:
            print("    " + line, file=sys.stderr)


# Processes to be ended when this one is.
running = set()


def end(process):
    """Ends a command with everything that it started."""
    for number, seconds in ((signal.SIGTERM, KILL_AFTER), (signal.SIGKILL, KILL_AFTER)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def end_all():
    for process in list(running):
        end(process)


def say(text):
    print("\033[2m[%s]\033[0m %s" % (time.strftime("%H:%M:%S"), text), file=sys.stderr, flush=True)


def run_all(steps, folder, at_once, deadline=None):
    """Runs the steps; their results, in the order in which they ended. `deadline`, of time.monotonic(): when all are to have ended."""
    results, waiting, live, planned = [], list(steps), set(), {step.name for step in steps}
    changed = threading.Condition()
    first = time.monotonic()

    def work(step):
        job, began = Job(step, folder, deadline), time.monotonic()
        try:
            step.work(job)
        except Failed as error:
            job.outcome.fail("FAILED: %s: %s (%s)" % (step.name, error, job.log))
        except Exception as error:  # a step's own mistake is a failure of that step
            job.outcome.fail("FAILED: %s: %s: %s" % (step.name, type(error).__name__, error))
        result = Result(step, job.outcome, began - first, time.monotonic() - began)
        say("%s: %s, %d s" % (step.name, "FAILED" if job.outcome.failed else "ok", result.seconds))
        with changed:
            results.append(result)
            live.remove(step.name)
            changed.notify()

    with changed:
        while waiting or live:
            for step in list(waiting):
                unmet = unmet_needs(step, results, planned)
                if unmet is None:
                    continue
                if unmet:
                    waiting.remove(step)
                    outcome = Outcome()
                    outcome.fail("NOT RUN: %s, because of %s" % (step.name, unmet))
                    results.append(Result(step, outcome, time.monotonic() - first, 0))
                    continue
                if len(live) == at_once:
                    break
                waiting.remove(step)
                if deadline and step.minutes and time.monotonic() + step.minutes * 60 > deadline:
                    outcome = Outcome()
                    outcome.skip("%s: the minutes of this run (SANDPIPER_MINUTES) are nearly over" % step.name)
                    results.append(Result(step, outcome, time.monotonic() - first, 0))
                    continue
                live.add(step.name)
                threading.Thread(target=work, args=(step,), daemon=True).start()
            if live:
                changed.wait()
            elif waiting and all(unmet_needs(step, results, planned) is None for step in waiting):
                raise ValueError("no step makes what these need: " + ", ".join(step.name for step in waiting))
    return results


def unmet_needs(step, results, planned):
    """None: not yet known. The name of a need that failed, or '' when all are met."""
    ended = {result.step.name: result for result in results}
    for need in step.needs:
        if need in ended and ended[need].outcome.failed:
            return need
    awaited = (*step.needs, *(name for name in step.after if name in planned))
    return "" if all(name in ended for name in awaited) else None
