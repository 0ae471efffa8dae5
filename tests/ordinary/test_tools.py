"""Terminals, debuggers, packages, keys, documents: what else one has at hand."""

from __future__ import annotations

from tests.ordinary.table import Row, table

NO_ROOT = "Without namespaces"
LOOPBACK = {"differs": {"landlock": None}, "guide": NO_ROOT}
C = (
    "printf '#include <stdlib.h>\\n#include <unistd.h>\\nint twice(int n) { return 2 * n; }\\nint "
    "main(int n, char **v) { %s }\\n' > a.c; gcc -g a.c -o a; "
)
TMUX = """
tmux -S $PWD/own -f /dev/null new-session -d -x 80 -y 20 "echo in tmux; exec cat"
for i in $(seq 100); do tmux -S $PWD/own capture-pane -p | grep 'in tmux' && break; sleep 0.1; done
tmux -S $PWD/own send-keys typed Enter
for i in $(seq 100); do test $(tmux -S $PWD/own capture-pane -p | grep -c typed) = 2 && echo echoed && break; sleep 0.1; done
tmux -S $PWD/own kill-server
"""
SCREEN = """
export SCREENDIR=$PWD/screens; mkdir -m 700 screens; printf '#!/bin/sh\\necho in screen > said; exec cat\\n' > run
chmod 755 run
TERM=xterm screen -c /dev/null -dmS own ./run; for i in $(seq 100); do test -s said && cat said && break; sleep 0.1; done
screen -S own -X quit
"""
DEBS = """
mkdir -p p/DEBIAN p/opt/x; echo hi > p/opt/x/file; printf 'Package: own-x\\nVersion: 1.0\\n' > p/DEBIAN/control
printf 'Architecture: all\\nMaintainer: a <a@b.c>\\nDescription: x\\n' >> p/DEBIAN/control
dpkg-deb --build --root-owner-group p own.deb > /dev/null
"""
GPG = """
export GNUPGHOME=$PWD/keys; mkdir -m 700 keys
gpg -q --batch --passphrase '' --quick-generate-key own@example.org ed25519 cert,sign never 2> log || { cat log; exit 1; }
echo hi > a; gpg -q --batch -s -o a.gpg a 2> log || { cat log; exit 1; }
gpg --batch --verify a.gpg 2>&1 | grep -o 'Good signature'; gpgconf --kill all
"""
DOCKER = (
    "docker %s > said 2>&1 && echo up || grep -o -m 1 -i 'cannot connect to the docker daemon\\|failed "
    "to connect to the docker API' said"
)

ROWS = [
    Row("tmux", TMUX, "in tmux\\s+echoed", ("tmux",), bare=True, **LOOPBACK),
    Row("screen", SCREEN, "in screen", ("screen",), bare=True, **LOOPBACK),
    Row(
        "a terminal by script",
        "script -qec 'tty > /dev/null && stty size && echo a terminal' /dev/null < /dev/null | tr -d '\\r'",
        "\\d+ \\d+\\s+a terminal",
        ("script",),
        bare=True,
    ),
    Row(
        "a terminal by Python",
        'python3 -c \'import pty; pty.spawn(["sh", "-c", "test -t 1 && echo a terminal"])\' < /dev/null',
        "a terminal",
        bare=True,
    ),
    Row(
        "strace",
        "strace -o log -e trace=openat cat /etc/passwd > /dev/null; grep -c passwd log",
        "[1-9]",
        ("strace",),
        bare=True,
    ),
    Row(
        "strace of descendants, counted",
        "strace -f -c -o log sh -c 'true; (echo hi)' ; grep -c execve log",
        "hi\\s+1",
        ("strace",),
        bare=True,
    ),
    Row(
        "ltrace's and gdb's kind: a break, a step, a value",
        C
        % "return twice(n) - 2;"
        + "gdb -q -batch -ex 'break twice' -ex run -ex 'print n' -ex bt -ex finish -ex continue ./a 2> "
        "/dev/null | grep -E '^(\\$1 = 1|#1 .*main|Value returned.*2|.*exited normally)' | wc -l",
        "4",
        ("gcc", "gdb"),
        bare=True,
    ),
    Row("gdb's Python", "gdb -q -batch -ex 'python print(6 * 7)'", "42", ("gdb",), bare=True),
    Row(
        "gdb, where a program broke down",
        C % "*(volatile int *)0 = n;" + "gdb -q -batch -ex run -ex bt ./a 2> /dev/null | grep -o 'SIGSEGV' | head -1",
        "SIGSEGV",
        ("gcc", "gdb"),
        bare=True,
    ),
    Row(
        "gdb, threads",
        "printf '#include <pthread.h>\\nvoid *f(void *p) { return p; }\\nint main(void) { pthread_t t; "
        "pthread_create(&t, 0, f, 0); pthread_join(t, 0); return 0; }\\n' > a.c; gcc -g a.c -o a; gdb -q "
        "-batch -ex 'break f' -ex run -ex 'info threads' ./a 2> /dev/null | grep -c 'LWP.*main\\|LWP.*f "
        "(\\|LWP.*[cC]lone\\|LWP.*join'",
        "[1-4]",
        ("gcc", "gdb"),
        bare=True,
    ),
    Row(
        "valgrind",
        C % "char *p = malloc(8); p[8] = n; return 0;"
        + "valgrind -q --error-exitcode=3 ./a 2> said || echo $?; grep -o 'Invalid write of size 1' said",
        "3\\s+Invalid write of size 1",
        ("gcc", "valgrind"),
        bare=True,
    ),
    Row(
        "valgrind, leaks",
        C % "return malloc(8) == 0;" + "valgrind --leak-check=full ./a 2>&1 | grep -o 'definitely lost: 8 bytes'",
        "definitely lost: 8 bytes",
        ("gcc", "valgrind"),
        bare=True,
    ),
    Row(
        "valgrind, calls",
        C % "return twice(0);" + "valgrind -q --tool=callgrind --callgrind-out-file=out ./a 2>/dev/null;"
        " callgrind_annotate --threshold=100 out | grep -c -m 1 twice",
        "[1-9]",
        ("gcc", "valgrind", "callgrind_annotate"),
        bare=True,
    ),
    Row("a core of one's own", "ulimit -c; gcore -h 2>&1 | head -1 | cut -c1-6", "\\w+\\s+[uU]sage:", ("gcore",)),
    Row(
        "faulthandler and a stack of Python's",
        "python3 -X faulthandler -c 'import os; os.abort()' 2>&1 | grep -c 'Fatal Python error'",
        "1",
        bare=True,
    ),
    Row(
        "what a process has open",
        "exec 3> own; ls -l /proc/$$/fd/3 | grep -o own$; python3 -c 'import os; print(len(os.listdir(\"/proc/self/task\")))'",
        "own\\s+1",
        bare=True,
    ),
    Row(
        "ps, top and pgrep",
        "sleep 77 & until pgrep -x sleep -P $$; do :; done | wc -l; ps -o comm= -p $!;"
        " top -b -n 1 | head -1 | cut -c1-3; kill $!",
        "1\\s+sleep\\s+top",
        ("ps", "pgrep", "top"),
        bare=True,
    ),
    Row(
        "free, df, uptime and vmstat",
        "free -m | grep -c Mem; df . | wc -l; uptime | grep -c load; vmstat 2>&1 | wc -l",
        "1\\s+2\\s+1\\s+3",
        ("free", "vmstat"),
        bare=True,
    ),
    Row(
        "a package of Debian's, looked into",
        DEBS + "dpkg-deb -f own.deb Package; dpkg-deb -c own.deb | grep -c opt/x/file; dpkg -x own.deb out; cat out/opt/x/file",
        "own-x\\s+1\\s+hi",
        ("dpkg-deb",),
        bare=True,
    ),
    Row(
        "apt, what is known",
        "apt-cache --version | cut -c1-3; apt-config dump | grep -c '^Dir '; apt list --installed 2> /dev/null | wc -l",
        "apt\\s+1\\s+\\d+",
        ("apt-cache",),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "apt, a simulation with a package from here",
        DEBS + "apt-get install -s ./own.deb 2>/dev/null | grep -c '^Inst own-x'",
        "1",
        ("apt-get",),
        **LOOPBACK,
    ),
    Row(
        "keys of ssh",
        "ssh-keygen -q -t ed25519 -N '' -f own; ssh-keygen -lf own.pub | grep -o ED25519; echo hi > a; "
        "ssh-keygen -q -Y sign -f own -n file a; ls a.sig",
        "ED25519\\s+a.sig",
        ("ssh-keygen",),
        **LOOPBACK,
    ),
    Row(
        "an agent of ssh's",
        "eval $(ssh-agent -a $PWD/own.agent) > /dev/null; ssh-keygen -q -t ed25519 -N '' -f own; ssh-add -q "
        "own; ssh-add -l | grep -o ED25519; ssh-agent -k > /dev/null",
        "ED25519",
        ("ssh-agent",),
        **LOOPBACK,
    ),
    Row("gpg, a key and a signature", GPG, "Good signature", ("gpg",), **LOOPBACK),
    Row(
        "openssl, digests, keys and ciphers",
        "echo hi > a; openssl dgst -sha256 a | cut -c1-4; openssl genpkey -algorithm ed25519 -out k; openssl "
        "pkeyutl -sign -rawin -inkey k -in a -out s; openssl enc -aes-256-cbc -pbkdf2 -k x -in a | openssl "
        "enc -d -aes-256-cbc -pbkdf2 -k x",
        "SHA2\\s+hi",
        ("openssl",),
        bare=True,
    ),
    Row(
        "rsync",
        "mkdir a; echo hi > a/b; ln -s b a/c; ln a/b a/d; rsync -aH a/ there/; rsync -aHi --delete a/ there/ "
        "| wc -l; cat there/c; stat -c %h there/d",
        "0\\s+hi\\s+2",
        ("rsync",),
        bare=True,
    ),
    Row(
        "archives of all kinds",
        "echo hi > a; tar czf a.tgz a; tar cJf a.txz a; zip -q a.zip a; rm a; unzip -q a.zip; tar xOf a.tgz "
        "a; tar xOf a.txz a; cat a; xz -k a; bzip2 -k a; gzip -k a; ls a.*z* | wc -l",
        "hi\\s+hi\\s+hi\\s+6",
        ("zip", "unzip", "xz", "bzip2"),
        bare=True,
    ),
    Row(
        "cpio and patches",
        "echo 1 > a; echo 2 > b; diff -u a b > p || true; patch -s a p; cat a; echo a | cpio -o --quiet > c; "
        "rm a; cpio -i --quiet < c; cat a",
        "2\\s+2",
        ("patch", "cpio"),
        bare=True,
    ),
    Row(
        "what is done later",
        "WHEN=$(date -d '+1 minute' +%H:%M); echo 'echo later' | at $WHEN 2>&1 | grep -o 'job "
        "[0-9]*\\|.*cannot.*\\|.*rror.*' | head -1",
        "job \\d+|.*",
        ("at",),
        **LOOPBACK,
    ),
    Row(
        "a command with a limit, another priority and no hang-up",
        "timeout 0.2 sleep 9 || echo $?; nice -n 5 nice; nohup echo there 2>/dev/null; setsid echo apart; "
        "chrt -b 0 echo batch; taskset -c 0 nproc || true; ionice -c 3 echo idle",
        "124\\s+1?5\\s+there\\s+apart\\s+batch\\s+(1\\s+)?idle",
        ("chrt", "taskset", "ionice", "setsid"),
        bare=True,
    ),
    Row(
        "limits of a shell",
        "ulimit -n 50; ulimit -n; ulimit -t 9; (ulimit -v 500000; python3 -c 'bytearray(10**9)' 2>&1 | grep -o MemoryError)",
        "50\\s+MemoryError",
        bare=True,
    ),
    Row(
        "locales",
        "locale -a | grep -c 'C.utf8\\|C.UTF-8'; LC_ALL=C.UTF-8 python3 -c 'print(\"\\u00e9\".upper())'; "
        "printf 'b\\nA\\n' | LC_ALL=C.UTF-8 sort | tr -d '\\n'",
        "1\\s+É\\s+Ab",
        ("locale",),
        bare=True,
    ),
    Row(
        "a locale of one's own",
        "mkdir own; localedef -i de_DE -f UTF-8 own/de_DE.UTF-8 2>/dev/null || true; LOCPATH=$PWD/own "
        "LC_ALL=de_DE.UTF-8 locale decimal_point; echo 1234.5 | LOCPATH=$PWD/own LC_ALL=de_DE.UTF-8 python3 "
        '-c \'import locale; locale.setlocale(locale.LC_ALL, ""); print(locale.format_string("%.1f", '
        "1234.5))'",
        ",\\s+1234,5",
        ("localedef",),
        bare=True,
    ),
    Row(
        "a locale for all",
        "echo 'de_DE.UTF-8 UTF-8' > /etc/locale.gen; locale-gen 2>&1 | tail -1",
        "Generation complete.|.*",
        ("locale-gen",),
        **LOOPBACK,
    ),
    Row(
        "manuals",
        "mkdir -p own/man1; printf '.TH own 1\\n.SH NAME\\nown \\\\- from a manual\\n' > own/man1/own.1; "
        "MANPAGER=cat man -M $PWD/own own 2>/dev/null | grep -o 'from a manual'",
        "from a manual",
        ("man",),
        bare=True,
    ),
    Row("less and more", "seq 3 | less -E -X | tail -1; printf 'x\\n' | more", "3\\s+x", ("less", "more"), bare=True),
    Row("vim", "echo old > a; vim -u NONE -n -es -c '%s/old/new/' -c wq a; cat a", "new", ("vim",), bare=True),
    Row(
        "vim's smaller one",
        "echo old > a; vim.tiny -u NONE -n -es -c '%s/old/new/' -c wq a; cat a",
        "new",
        ("vim.tiny",),
        bare=True,
    ),
    Row("nano, ed and the sed of a file", "printf 'old\\n' > a; sed -i.bak s/old/new/ a; cat a a.bak", "new\\s+old", bare=True),
    Row(
        "sounds and pictures",
        "ffmpeg -v error -f lavfi -i testsrc=duration=1:size=64x64:rate=5 -threads 4 a.gif; ffprobe -v error "
        "-show_entries stream=width -of csv=p=0 a.gif",
        "64",
        ("ffmpeg",),
        bare=True,
    ),
    Row(
        "a browser without a window",
        "echo '<p>from <b id=x></b><script>document.getElementById(\"x\").textContent = 6 * 7</script></p>' "
        "> a.html; chromium --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/own --dump-dom "
        "file://$PWD/a.html 2> log | grep -o '<b id=.x.>42' || cat log",
        "<b id=.x.>42",
        ("chromium",),
        **LOOPBACK,
    ),
    Row("docker has nobody to talk to", DOCKER % "version", ".*onnect to the [Dd]ocker .*", ("docker",), bare=False),
    Row(
        "inotify",
        "python3 - <<'E'\nimport ctypes, os\nl = ctypes.CDLL(None, use_errno=True); f = l.inotify_init1(0); "
        "assert l.inotify_add_watch(f, b'.', 0x100) > 0\nopen('own', 'w').close(); print(b'own' in "
        "os.read(f, 4096))\nE",
        "True",
        bare=True,
    ),
    Row(
        "pipes with names, files without, maps",
        'mkfifo own; (echo hi > own &); cat own; python3 -c \'import mmap, os; f = os.memfd_create("x"); '
        "os.ftruncate(f, 4096); m = mmap.mmap(f, 4096); m[0] = 7; print(os.pread(f, 1, 0)[0])'",
        "hi\\s+7",
        bare=True,
        differs={"landlock": ".*7"},
        guide=NO_ROOT,
    ),
    Row(
        "semaphores and queues of System V",
        "ipcmk -M 4096 -S 1 -Q | wc -l; ipcs -m | grep -c 4096; ipcrm -a",
        "3\\s+1",
        ("ipcmk",),
        **LOOPBACK,
    ),
    Row(
        "unshare and mounts are refused",
        "unshare -r true 2>&1 | grep -o 'not permitted' ; mount -t tmpfs none /mnt 2>&1 | grep -c 'permi\\|denied\\|superuser'",
        "not permitted\\s+1",
        ("unshare",),
        **LOOPBACK,
    ),
    Row(
        "perf is refused",
        "perf stat true 2>&1 | grep -o -m 1 -i 'not permitted\\|no permission\\|access to performance "
        "monitoring\\|perf_event_paranoid\\|not found'",
        ".*(ermi|ccess|paranoid|not found).*",
        ("perf",),
    ),
]

test_a_command = table(ROWS, always=13)
