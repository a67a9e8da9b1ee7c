r"""What a candidate can do to its process, and the categories that answer it.

name: (places in the honest candidate of right_answer, category). `pass` stands for: it harms nobody, so the right
answer counts. `a, basic: b` is another category at one level of walls; FOLDER is where the candidate may write.
"""

LOOP = "while True: pass"
FORGED = r"""
        import os
        for fd in range(3, 64):
            try: os.write(fd, (200003).to_bytes(4, 'little') + b'\x81\xa1a' + b'\x91' * 200000)
            except OSError: pass"""
"""A frame that nests deeper than Python, to whatever the host may write to."""
Case = tuple[dict[str, str], str]

TIME: dict[str, Case] = {
    "endless_import": ({"top": LOOP}, "timeout"),
    "endless_init": ({"init": LOOP}, "timeout"),
    "endless_forward": ({"before": LOOP}, "timeout"),
    "endless_kernel": ({"body": "while n > 0: offsets += 1"}, "timeout"),
    "sleeps": ({"before": "__import__('time').sleep(1000)"}, "timeout"),
    "ignores_sigterm": (
        {"top": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)", "before": LOOP},
        "timeout",
    ),
    "message_that_never_ends": (
        {"top": f"class Odd(Exception):\n    def __str__(self):\n        {LOOP}", "before": "raise Odd()"},
        "timeout",
    ),
    "endless_del": ({"top": f"class Odd:\n    def __del__(self):\n        {LOOP}", "before": "Odd()"}, "timeout"),
    "waits_for_itself": (
        {"before": "\n        import threading\n        lock = threading.Lock(); lock.acquire(); lock.acquire()"},
        "timeout",
    ),
    "bottomless_recursion": (
        {"before": "__import__('sys').setrecursionlimit(10**9); (f := lambda a: [f(a)])([])"},
        "timeout",
    ),
    "many_outputs": ({"after": "return [out] * 10**6"}, "timeout"),
    "waits_for_input": ({"before": "\n        import os\n        r, w = os.pipe(); os.read(r, 1)"}, "timeout"),
}

ENDINGS: dict[str, Case] = {
    "exit_0": ({"before": "__import__('os')._exit(0)"}, "crash"),
    "exit_like_a_broken_sandbox": ({"before": "__import__('os')._exit(71)"}, "crash"),
    "sys_exit_import": ({"top": "raise SystemExit(0)"}, "import_error"),
    "sys_exit_init": ({"init": "__import__('sys').exit(3)"}, "construct_error"),
    "sys_exit_forward": ({"before": "__import__('sys').exit()"}, "runtime_error"),
    "sys_exit_del": (
        {"top": "import sys\nclass Odd:\n    def __del__(self): sys.exit(1)", "before": "Odd()"},
        "pass",
    ),
    "keyboard_interrupt": ({"before": "raise KeyboardInterrupt"}, "runtime_error"),
    "generator_exit": ({"before": "raise GeneratorExit"}, "runtime_error"),
    "message_that_raises": (
        {"top": "class Odd(Exception):\n    def __str__(self): raise ValueError", "before": "raise Odd()"},
        "runtime_error",
    ),
    "message_that_exits": (
        {"top": "class Odd(Exception):\n    def __str__(self): raise SystemExit", "before": "raise Odd()"},
        "crash",
    ),
    "message_of_100_mb": ({"before": "raise ValueError('x' * 10**8)"}, "runtime_error"),
    "message_of_surrogates": ({"before": r"raise ValueError('\ud800' * 50)"}, "runtime_error"),
    "name_of_surrogates": ({"before": r"raise type('E\ud800\0', (Exception,), {})('x')"}, "runtime_error"),
    "segfault": ({"before": "__import__('ctypes').string_at(0)"}, "crash"),
    "abort": ({"before": "__import__('os').abort()"}, "crash"),
    "kills_itself": ({"before": "__import__('os').kill(__import__('os').getpid(), 9)"}, "runtime_error"),
    "raises_sigkill": ({"before": "__import__('signal').raise_signal(9)"}, "runtime_error"),
    "stops_itself": ({"before": "__import__('signal').raise_signal(19)"}, "runtime_error"),
    "raises_sigsegv": ({"before": "__import__('signal').raise_signal(11)"}, "pass, basic: crash"),
    "sigalrm": (
        {"before": "\n        import signal, time\n        signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.1)"},
        "pass, basic: crash",
    ),
    "kills_everybody": ({"before": "__import__('os').kill(-1, 9)"}, "runtime_error"),
    "kills_its_group": ({"before": "__import__('os').killpg(0, 9)"}, "runtime_error"),
    "endless_atexit": ({"top": f"import atexit\ndef odd():\n    {LOOP}\natexit.register(odd)"}, "pass"),
    "endless_thread": (
        {"top": "import threading\ndef odd():\n    while True: threading.Event().wait(1)\ntry: threading.Thread(target=odd).start()\nexcept RuntimeError: pass"},
        "pass",
    ),
    "closes_everything": ({"before": "__import__('os').closerange(0, 256)"}, "crash"),
    "closes_stdout": ({"before": "import sys; sys.stdout.close(); sys.stderr.close()"}, "pass"),
    "forged_frame": (
        {"before": FORGED},
        "tampering",
    ),
    "own_unsupported_error": (
        {"top": "bfloat16 = 1\nclass UnsupportedError(Exception): pass", "before": "raise UnsupportedError('please')"},
        "runtime_error",
    ),
}  # fmt: skip

MEMORY: dict[str, Case] = {
    "huge_tensor": ({"before": "torch.empty(25_000_000_000).fill_(1)"}, "memory"),
    "huge_bytes": ({"before": "bytearray(100 * 2**30)"}, "memory"),
    "many_small": ({"before": "self.kept = [bytes(2**20) for _ in range(100_000)]"}, "memory"),
    "deep_recursion": ({"before": "(f := lambda: f())()"}, "runtime_error"),
    "memory_file": ({"before": "__import__('os').memfd_create('x')"}, "runtime_error"),
    "shared_memory": ({"before": "__import__('mmap').mmap(-1, 100 * 2**30)"}, "runtime_error"),
    "fork_bomb": ({"before": "\n        import os\n        while True: os.fork()"}, "runtime_error"),
    "thread_bomb": (
        {
            "before": "\n        import threading, time"
            "\n        threading.stack_size(32768)"
            "\n        while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
        },
        "runtime_error",
    ),
    "many_descriptors": ({"before": "\n        import os\n        while True: os.open('/dev/null', 0)"}, "runtime_error"),
}  # fmt: skip

FILES: dict[str, Case] = {
    "full_disk": ({"before": "[open(f'{FOLDER}/{i}', 'wb').write(bytes(2**24)) for i in range(64)]; __import__('time').sleep(1)"}, "runtime_error, basic: memory"),
    "large_file": ({"before": "f = open(f'{FOLDER}/x', 'wb', 0); [f.write(bytes(2**22)) for _ in range(64)]"}, "runtime_error, basic: runtime_error or memory"),
    "many_files": ({"before": "[open(f'{FOLDER}/{i}', 'w').close() for i in range(2 * 10**4)]"}, "runtime_error, basic: memory"),
    "deep_folders": (
        {"top": "import os\nos.chdir(FOLDER)\nfor _ in range(1500): os.mkdir('d' * 100); os.chdir('d' * 100)"},
        "pass, basic: memory",
    ),
    "closed_folders": (
        {"top": "import os\nos.makedirs(f'{FOLDER}/a/b/c')\nopen(f'{FOLDER}/a/b/c/x', 'w').close()\nos.chmod(f'{FOLDER}/a/b', 0)\nos.chmod(f'{FOLDER}/a', 0)"},
        "pass",
    ),
    "hostile_links": (
        {"top": "import os\nos.symlink('/', f'{FOLDER}/root')\nos.symlink('..', f'{FOLDER}/up')\nos.symlink('loop', f'{FOLDER}/loop')\nos.mkfifo(f'{FOLDER}/fifo')"},
        "pass",
    ),
    "write_outside": ({"before": "open('/usr/x', 'w')"}, "runtime_error"),
    "deletes_its_folder": (
        {"top": "import shutil; shutil.rmtree(FOLDER, ignore_errors=True); raise KeyError('gone')"},
        "import_error",
    ),
    "deletes_its_folder_in_forward": (
        {"before": "__import__('shutil').rmtree(FOLDER, ignore_errors=True)"},
        "runtime_error",
    ),
    "network": ({"before": "__import__('socket').create_connection(('127.0.0.1', 80))"}, "runtime_error"),
    "process": ({"before": "__import__('subprocess').run(['true'])"}, "runtime_error"),
    "ptrace": ({"before": "assert __import__('ctypes').CDLL(None).ptrace(0, 0, 0, 0) == 0"}, "runtime_error"),
    "new_namespace": ({"before": "assert __import__('ctypes').CDLL(None).unshare(0x10000000) == 0"}, "runtime_error"),
}  # fmt: skip
FILES = {
    name: ({**places, "top": "import os\nFOLDER = os.environ['TMPDIR']\n" + places.get("top", "")}, categories)
    for name, (places, categories) in FILES.items()
}

OUTPUTS: dict[str, Case] = {
    "generator": ({"after": "return (part for part in [out])"}, "wrong_type"),
    "subclass": ({"top": "class Odd(torch.Tensor): pass", "after": "return out.as_subclass(Odd)"}, "wrong_type"),
    "nested_tuples": (
        {"after": "\n        for _ in range(10**6): out = (out,)"},
        "wrong_type",
    ),
    "own_list": ({"after": "out = [out]; out.append(out)"}, "wrong_type"),
    "large_output": ({"after": "return out.new_zeros(10**8)"}, "wrong_shape"),
    "huge_string": ({"after": "return 'x' * 10**8"}, "wrong_shape"),
    "huge_integer": ({"after": "return 10**10000"}, "runtime_error"),
    "surrogate": ({"after": r"return '\ud800'"}, "runtime_error"),
    "expanded": ({"after": "return out[:1].expand(10**12)"}, "wrong_shape"),
    "sparse": ({"after": "return out.to_sparse()"}, "runtime_error"),
    "loads_for_ever": ({"after": f"out.__reduce_ex__ = lambda *_: exec({LOOP!r})"}, "pass"),
}  # fmt: skip

PRINTS: dict[str, Case] = {
    "a_gigabyte_in_import": ({"top": "[print('x' * 2**20) for _ in range(1024)]"}, "output_limit"),
    "a_gigabyte_in_forward": ({"before": "[print('x' * 2**20) for _ in range(1024)]"}, "output_limit"),
    "a_megabyte": ({"before": "print('x' * 2**20)"}, "pass"),
}


def at(categories: str, level: str) -> list[str]:
    """The category at one level: `a` everywhere, or `a, basic: b`, or `a, basic: b or c` where two limits meet and
    either may be first."""
    everywhere, *others = categories.split(", ")
    return dict(part.split(": ") for part in others).get(level, everywhere).split(" or ")
