"""Directories that every Linux has and what programs look up in /etc and /sys."""

from __future__ import annotations

from tests.ordinary.table import Row, table

WRITABLE = (
    "/var/log /var/lib /var/run /var/cache /var/spool /var/tmp /var/lock /mnt /srv /media /opt /usr/local /usr/local/bin /etc"
)
NO_ROOT = "Without namespaces"
WHEEL = """
python3 - <<'P'
import zipfile
with zipfile.ZipFile("own_x-1.0-py3-none-any.whl", "w") as made:
    made.writestr("own_x.py", "def main(): print('from pip')\\n")
    made.writestr("own_x-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: own-x\\nVersion: 1.0\\n")
    made.writestr("own_x-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    made.writestr("own_x-1.0.dist-info/entry_points.txt", "[console_scripts]\\nown-x = own_x:main\\n")
    made.writestr("own_x-1.0.dist-info/RECORD", "")
P
pip install -q --no-index ./own_x-1.0-py3-none-any.whl
"""
NPM = """
mkdir pkg; printf '{"name":"hello-x","version":"1.0.0","bin":{"hello-x":"cli.js"}}' > pkg/package.json
printf '#!/usr/bin/env node\\nconsole.log("from npm")\\n' > pkg/cli.js; (cd pkg && npm pack --silent > /dev/null)
npm install -g --offline --no-audit --silent ./pkg/hello-x-1.0.0.tgz; hello-x
"""
MAKE = """
printf 'install:\\n\\tinstall -D -m 755 tool $(PREFIX)/bin/tool\\n' > Makefile
printf '\\tinstall -D -m 644 tool $(PREFIX)/share/man/man1/tool.1\\n' >> Makefile
printf '#!/bin/sh\\necho from make\\n' > tool; make -s install PREFIX=/usr/local; tool; ls /usr/local/share/man/man1/tool.1
"""
LIBRARY = """
echo 'int own(void) { return 42; }' > own.c; gcc -shared -fPIC own.c -o /usr/local/lib/libown.so; ldconfig
echo 'int own(void); int main() { return own() - 42; }' > main.c; gcc main.c -lown -o main && ./main && echo linked
"""
DEB = """
mkdir -p p/DEBIAN p/opt/own/bin; printf '#!/bin/sh\\necho from dpkg\\n' > p/opt/own/bin/own; chmod 755 p/opt/own/bin/own
printf 'Package: own-x\\nVersion: 1.0\\nArchitecture: all\\nMaintainer: a <a@b.c>\\nDescription: x\\n' > p/DEBIAN/control
dpkg-deb --build --root-owner-group p own.deb > /dev/null; dpkg -i own.deb > /dev/null 2>&1; /opt/own/bin/own
dpkg-query -W -f '${Status}\\n' own-x; dpkg -r own-x > /dev/null 2>&1; test ! -e /opt/own/bin/own
"""

ROWS = [
    Row(
        "directories that are written to",
        f"for d in {WRITABLE}; do touch $d/own && mkdir -p $d/dir/below || echo no $d; done; echo done",
        "done",
        differs={"landlock": "(no [/a-z]+\\s*)+done"},
        guide=NO_ROOT,
    ),
    Row(
        "make install",
        MAKE,
        "from make\n/usr/local/share/man/man1/tool.1",
        ("make",),
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row("npm install -g", NPM, "from npm", ("npm",)),
    Row(
        "pip install", WHEEL + "own-x; python3 -c 'import own_x; own_x.main()'; pip uninstall -q -y own-x", "from pip\nfrom pip"
    ),
    Row("a library for all", LIBRARY, "linked", ("gcc",), differs={"landlock": None}, guide=NO_ROOT),
    Row(
        "a package of Debian's into /opt",
        DEB,
        "from dpkg\ninstall ok installed",
        ("dpkg",),
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "what is installed",
        "dpkg-query -W -f '${Status}\\n' bash",
        "install ok installed",
        ("dpkg-query",),
        bare=True,
        differs={"landlock": ""},
        guide=NO_ROOT,
    ),
    Row("which system it is", ". /etc/os-release; echo $ID", "[a-z]+", bare=True),
    Row(
        "ports by name", "getent services https; getent protocols tcp", r"https\s+443/tcp.*tcp\s+6 TCP", ("getent",), bare=True
    ),
    Row("ports by name, Python", "python3 -c 'import socket; print(socket.getservbyname(\"https\"))'", "443", bare=True),
    Row(
        "what a file is",
        "echo '%PDF-1.4' > a; file -b a; file -b --mime-type a",
        "PDF document.*application/pdf",
        ("file",),
        bare=True,
    ),
    Row("types by name", "python3 -c 'import mimetypes; print(mimetypes.guess_type(\"a.html\")[0])'", "text/html", bare=True),
    Row("fonts", "fc-list > list && echo ok", "ok", ("fc-list",), bare=True),
    Row(
        "OpenSSL's configuration",
        "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=a -keyout k -out c 2> said || cat said;"
        " openssl x509 -in c -noout -subject",
        "subject=\\s*CN\\s*=\\s*a",
        ("openssl",),
    ),
    Row(
        "whom OpenSSL trusts",
        "openssl version -d; ls $(openssl version -d | cut -d'\"' -f2)/certs | wc -l",
        r"OPENSSLDIR.*\s\d{2,}",
        ("openssl",),
        bare=True,
    ),
    Row(
        "ssh's configuration",
        "ssh -G example.org | grep '^user '",
        "user .*",
        ("ssh",),
        bare=True,
        differs={"landlock": "(user .*)?"},
        guide=NO_ROOT,
    ),
    Row("a login shell", "bash -lc 'echo $((6 * 7))'", "42", bare=True),
    Row("terminals", "TERM=xterm-256color infocmp | head -1 | cut -c1-1", "#", ("infocmp",), bare=True),
    Row("alternatives", "readlink -f /usr/bin/awk", "/usr/bin/[a-z]+awk", ("awk",), bare=True),
    Row("Perl's modules", "perl -MNet::hostent -MPOSIX -e 'print POSIX::floor(4.2)'", "4", ("perl",), bare=True),
    Row(
        "links of /usr into /etc",
        "find /usr/lib -maxdepth 4 -xtype l -lname '/etc/*' ! -lname '/etc/ssl/private' ! -lname '/etc/environment'"
        " ! -lname '/etc/alternatives/*'",
        "",
    ),
    Row("a copy with attributes", "touch a; setfattr -n user.x -v 1 a 2>/dev/null || true; cp -a a b && ls b", "b"),
    Row(
        "a file system in a file",
        "truncate -s 8M disk; mkfs.ext4 -q disk && file -b disk | cut -c1-10",
        "Linux rev",
        ("mkfs.ext4", "file"),
        bare=True,
    ),
    Row("lscpu", "lscpu | grep -E '^(CPU\\(s\\)|NUMA node\\(s\\)|L2 cache|Core)' | wc -l", "[3-9]", ("lscpu",), bare=True),
    Row("processors of all", "getconf _NPROCESSORS_CONF; nproc --all", r"(\d+)\n\1", bare=True),
    Row("caches", "cat /sys/devices/system/cpu/cpu0/cache/index0/size", r"\d+K", bare=True),
    Row(
        "nodes of memory",
        "cat /sys/devices/system/node/online /sys/devices/system/node/node0/cpulist",
        r"0\S*\s+0\S*",
        bare=True,
    ),
    Row("large pages", "cat /sys/kernel/mm/transparent_hugepage/enabled", r".*\[\w+\].*", bare=True),
    Row(
        "nothing else of the hardware",
        "ls /sys/class /sys/block /sys/firmware 2>/dev/null | wc -l",
        "0",
        differs={"landlock": ".*"},
        guide=NO_ROOT,
    ),
    Row(
        "the machine's /usr/local",
        "ls /usr/local/bin | wc -l; test -d /usr/local/share && echo there",
        r"\d+\s+there",
        bare=True,
    ),
    Row(
        "locks in /var/lock",
        "flock /var/lock/own true && echo locked",
        "locked",
        ("flock",),
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "a socket in /var/run",
        "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind(\"/var/run/own.sock\"); print(1)'",
        "1",
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row("the time zone", "date +%Z", "UTC"),
    Row("the shell of root", "getent passwd root | cut -d: -f7; su -c 'echo $0'", "/bin/bash\nbash", users=True),
    Row("who one is", "whoami; getent passwd root | cut -d: -f1,3", "root\nroot:0", differs={"landlock": ".*"}, guide=NO_ROOT),
]

test_a_command = table(ROWS)
