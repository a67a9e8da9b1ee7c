"""`kernelmill gateway`: the KernelBench eval server's HTTP API on this machine, without a run or a broker.

    kernelmill gateway --workers 2 --target cuda:90
    kernelmill gateway --workers 4 --gpu
    curl -s localhost:18188/health

For a run's evaluators use `kernelmill run gateway --config CONFIG`. KERNELMILL_GATEWAY_TOKEN in the environment is the
bearer token that clients must send; it is needed to listen beyond this machine. docs/gateway.md has the API.
"""

import argparse
import asyncio
import signal
from typing import Any

from runners import interrupts, judge_options
from runners.usage import UsageError

GRACE_S = 20.0
"""For the requests in hand, when it is to stop."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "gateway",
        help="judge over HTTP: the KernelBench eval server's API",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=18188, help="default 18188; 0 takes a free one")
    parser.add_argument("--workers", type=int, default=2, help="candidates judged at once (default 2)")
    judge_options.add_options(parser)
    parser.add_argument("--places", type=int, default=1024, help="requests in hand; more get 503 (default 1024)")
    parser.add_argument(
        "--verdict-timeout",
        type=float,
        metavar="SECONDS",
        help="longest wait for one (default: as long as judging may take, which follows from the other options)",
    )
    parser.add_argument("--max-request-kb", type=int, default=1024, help="largest body of one request (default 1024)")
    parser.add_argument(
        "--modelled-runtime", action="store_true", help="give modelled times as `runtime` where nothing is measured"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from runners.actor_process import loop_factory

    for name in ("workers", "places", "max_request_kb"):
        if getattr(args, name) <= 0:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} {getattr(args, name)}: wanted a number above 0")
    if args.verdict_timeout is not None and not 0 < args.verdict_timeout < float("inf"):
        raise UsageError(
            f"--verdict-timeout {args.verdict_timeout:g}: wanted seconds above 0; leave it out for as long as it takes"
        )
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port {args.port}: wanted 0 to 65535")
    settings = judge_options.settings(args)
    from core.evaluation.pool import JudgeError
    from runners.preflight import check_packages

    check_packages()
    before = signal.signal(signal.SIGINT, lambda *_: interrupts.end("kernelmill gateway: interrupted"))  # until `serve`
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(serve(args, settings))
    except JudgeError as error:
        raise UsageError(judge_options.in_options(str(error))) from None
    finally:
        signal.signal(signal.SIGINT, before)


async def serve(args: argparse.Namespace, settings: Any) -> int:
    """Listen, judge, and stop in order at the first SIGTERM or Ctrl-C; at the second one end as it is."""
    import os

    from actors.eval_desk import Desk
    from actors.eval_http import EvalServer, listen
    from actors.fault_book import FaultBook
    from actors.gateway import TOKEN
    from actors.pool_judging import PoolJudging
    from core.clock import SystemClock
    from runners import logs

    logs.on_terminal()
    token = os.environ.get(TOKEN, "")
    listening = listen(args.host, args.port, token)  # first: a port that is taken shows before seconds of start
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            interrupts.end()
        stop.set()
        requests = f"{desk.taken} request{'s' if desk.taken > 1 else ''} in hand"
        waited = f"waiting at most {GRACE_S:.0f} s for {requests}" if desk.taken else "nothing in hand"
        interrupts.say(f"kernelmill gateway: stopping: {waited}, then for the workers; Ctrl-C again ends it now")

    book = FaultBook(threshold=10)
    judging = PoolJudging(
        settings, args.workers, book, timeout_s=args.verdict_timeout or 0.0, modelled_runtime=args.modelled_runtime
    )
    desk = Desk(judging, places=args.places, clock=SystemClock())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    starting, stopping = asyncio.create_task(judging.start()), asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await judging.stop()
        return 0
    starting.result()
    server = EvalServer(
        desk,
        book,
        token=token,
        max_request_bytes=1024 * args.max_request_kb,
    )
    try:
        await server.start(listening)
        host, port = listening.getsockname()[:2]
        print(f"listening on http://{host}:{port} ({args.workers} workers, sandbox: {judging.walls})", flush=True)
        await stopping
        await server.stop(grace_s=GRACE_S)
    finally:
        stopping.cancel()
        await judging.stop()
    return 0
