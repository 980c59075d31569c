"""Four workers that can be struck: on loopback, behind lying proxies, or on a network whose cables can be pulled."""

import signal
import time
from contextlib import ExitStack

from harness import Generation, Worker
from netlab import Lab
from proxy import Proxy

WORKERS = 4


class Loopback:
    """Workers on loopback, killed or stopped."""

    faults = ("SIGKILL", "SIGSTOP")
    more_faults = ()  # for --random, and for the matrix with --all-faults
    namespace = None

    def __init__(self, count=WORKERS, options=()):
        self.stack = ExitStack()
        self.options = options
        self.workers = [None] * count
        try:
            self.open(count)
            for index in range(count):
                self.start(index)
        except BaseException:
            self.stack.close()
            raise

    def open(self, count):
        """What has to be there before the workers."""

    def new_worker(self, _):
        return Worker(*self.options)

    def start(self, index):
        """A fresh process in the place of the old one, which is killed if it lives."""
        if self.workers[index]:
            self.workers[index].kill()
        self.workers[index] = self.stack.enter_context(self.new_worker(index))

    def addresses(self):
        return [worker.address for worker in self.workers]

    def generate(self, **options):
        return Generation(self.addresses(), namespace=self.namespace, **options)

    def strike(self, index, fault):
        """The moment at which the fault began."""
        return self.workers[index].signal(getattr(signal, fault))

    def mend(self, index, _):
        """After the run: the worker is as good as new."""
        self.start(index)

    def check(self):
        """Sentences about workers that ended although nobody struck them; they are started again."""
        dead = [i for i, worker in enumerate(self.workers) if worker.process.poll() is not None]
        told = [f"worker {i + 1} ended by itself with {self.workers[i].process.returncode}: {self.workers[i].errors()}"
                for i in dead]
        for index in dead:
            self.start(index)
        return told

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()


class Proxied(Loopback):
    """Workers behind proxies that lie. A struck worker is not started again after the run: it has to bear it."""

    faults = ("garbage",)
    more_faults = ("one bit", "reset", "stall")

    def open(self, count):
        self.proxies = [None] * count

    def start(self, index):
        if self.proxies[index]:
            self.proxies[index].close()
        super().start(index)
        self.proxies[index] = self.stack.enter_context(Proxy(self.workers[index].address))

    def addresses(self):
        return [proxy.address for proxy in self.proxies]

    def strike(self, index, fault):
        proxy = self.proxies[index]
        return {"garbage": proxy.garbage, "one bit": proxy.corrupt, "reset": proxy.cut, "stall": proxy.stall}[fault]()

    def mend(self, index, fault):
        self.proxies[index].resume()


class Networked(Loopback):
    """Workers on nodes of a lab, the coordinator on another; the cable of a node is pulled while data is on its way."""

    faults = ("link down",)

    def open(self, count):
        self.lab = self.stack.enter_context(Lab(count + 1))
        self.namespace = self.lab.name(count)

    def new_worker(self, index):
        return Worker(*self.options, listen=f"{self.lab.address(index)}:7000", namespace=self.lab.name(index))

    def strike(self, index, fault):
        return self.lab.link_down(index)

    def mend(self, index, fault):
        self.lab.link_up(index)
        self.start(index)


BENCHES = (Loopback, Proxied, Networked)


def sleep_until(moment):
    time.sleep(max(0.0, moment - time.monotonic()))
