"""Files of other owners, and being other users."""

from __future__ import annotations

from tests.ordinary.table import Row, table

NO_ROOT = "Without namespaces"
CLEAN = 'env -i PATH="$PATH" '
BOB = "useradd -m -s /bin/bash bob; "
NOBODY = "su -s /bin/bash nobody -c "
POSTGRES = """
useradd -r -m postgres; mkdir data; chown postgres data; bin=$(ls -d /usr/lib/postgresql/*/bin); chmod 755 .
su postgres -c "$bin/initdb -D $PWD/data > /dev/null 2>&1
$bin/pg_ctl -w -D $PWD/data -o '-k /tmp' -l $PWD/data/log start > /dev/null
psql -h /tmp -d template1 -Atc 'select 6 * 7'; $bin/pg_ctl -D $PWD/data stop -m fast > /dev/null"
"""

FAKEROOT = """
touch a; fakeroot -s s chown 1000:33 a; fakeroot -i s stat -c %u:%g a; fakeroot cp -a /usr/share/zoneinfo/UTC b && echo done
"""

ROWS = [
    Row("chown to a number", "touch a; chown 1000:50 a; stat -c %u:%g a", "1000:50", users=True),
    Row("chown to a name", "touch a; chown www-data:adm a; stat -c %U:%G a", "www-data:adm", users=True),
    Row("chown of a tree", "mkdir -p a/b; touch a/b/c; chown -R 33 a; stat -c %u a a/b a/b/c | uniq", "33", users=True),
    Row("chown of a link itself", "ln -s x l; chown -h 7:8 l; stat -c %u:%g l", "7:8", users=True),
    Row("chgrp", "touch a; chgrp nogroup a; stat -c %g a", "65534", users=True),
    Row("cp -a from /usr", "cp -a /usr/share/zoneinfo . && ls zoneinfo/UTC", "zoneinfo/UTC", users=True),
    Row("cp -a of one's own", "touch a; chown 5:6 a; cp -a a b; stat -c %u:%g b", "5:6", users=True),
    Row("mv to another file system", "touch a; chown 5:6 a; mv a /dev/shm; stat -c %u:%g /dev/shm/a", "5:6", users=True),
    Row("install -o in a clean environment", CLEAN + "install -o 33 -g 34 /etc/passwd b; stat -c %u:%g b", "33:34", users=True),
    Row(
        "tar in a clean environment",
        f"touch a; tar --owner=501 --group=20 -cf a.tar a; {CLEAN} tar xf a.tar; stat -c %u:%g a",
        "501:20",
        users=True,
    ),
    Row("tar", "touch a; tar --owner=501 --group=20 -cf a.tar a; tar xf a.tar && echo there", "there"),
    Row(
        "cpio",
        "touch a; chown 9:9 a; echo a | cpio -o 2>/dev/null > x; rm a; cpio -i < x 2>/dev/null; stat -c %u a",
        "9",
        ("cpio",),
        users=True,
    ),
    Row("rsync -a", "mkdir a; touch a/b; chown 9:9 a/b; rsync -a a/ c; stat -c %u:%g c/b", "9:9", ("rsync",), users=True),
    Row("ids beyond the range", "touch a; chown 65536 a 2>&1 | grep -o 'Invalid argument'", "Invalid argument", users=True),
    Row("mknod", "mknod a p; test -p a && echo pipe", "pipe", bare=True),
    Row("root reads what it may not", "echo x > a; chmod 0 a; cat a", "x", differs={"landlock": ""}, guide=NO_ROOT),
    Row("root goes where it may not", "mkdir a; touch a/b; chmod 0 a; ls a", "b", differs={"landlock": ""}, guide=NO_ROOT),
    Row("root changes modes of others'", "touch a; chown 9 a; chmod 600 a; stat -c %a a", "600", users=True),
    Row(
        "another user does not",
        f"touch a; chmod 600 a; {NOBODY} 'cat {{a,/etc/shadow}}' 2>&1 | grep -c denied",
        "2",
        users=True,
    ),
    Row("a user's own file", f"chmod 777 .; {NOBODY} 'echo x > a'; stat -c %U a", "nobody", users=True),
    Row(
        "the sticky bit",
        f"chmod 1777 .; touch a; {NOBODY} 'rm -f a' 2>&1 | grep -o 'not permitted'; ls",
        "not permitted\na",
        users=True,
    ),
    Row("a directory that hands its group on", "mkdir a; chgrp 50 a; chmod g+s a; touch a/b; stat -c %g a/b", "50", users=True),
    Row("su", f"{NOBODY} 'id -un; id -g'", "nobody\n65534", users=True),
    Row("su and back", f"{NOBODY} 'su root -c id < /dev/null' 2>&1 | grep -c -i failure", "[01]", returncode=1, users=True),
    Row("runuser", "runuser -u www-data -- id -un", "www-data", users=True),
    Row("setpriv", "setpriv --reuid 1000 --regid 1001 --clear-groups id", "uid=1000 gid=1001 groups=1001", users=True),
    Row("groups of one's own", "setpriv --reuid 1000 --regid 1000 --groups 4,24 id -G", "1000 4 24", users=True),
    Row(
        "setuid and setgid",
        "python3 -c 'import os; os.setgid(5); os.setuid(6); print(os.getresuid(), os.getresgid())'",
        r"\(6, 6, 6\) \(5, 5, 5\)",
        users=True,
    ),
    Row("no way back", "python3 -c 'import os; os.setuid(6); os.setuid(0)' 2>&1 | tail -1", "PermissionError.*", users=True),
    Row(
        "becoming another for a while",
        "python3 -c 'import os; os.seteuid(6); os.seteuid(0); print(os.geteuid())'",
        "0",
        users=True,
    ),
    Row(
        "subprocess.run(user=)",
        'python3 -c \'import subprocess as s; s.run(["id", "-u"], user="games", group=60, extra_groups=[])\'',
        "5",
        users=True,
    ),
    Row(
        "a signal to another user's process",
        f"sleep 60 & p=$!; {NOBODY} \"kill $p\" 2>&1 | grep -o 'not permitted'; kill $p",
        "not permitted",
        users=True,
    ),
    Row(
        "a signal from root",
        "setpriv --reuid 7 --clear-groups sleep 60 & sleep 0.2; kill %1; wait %1 || echo $?",
        "143",
        users=True,
    ),
    Row("useradd", BOB + "su bob -c 'cd; pwd; touch x; stat -c %U:%G x'", "/home/bob\nbob:bob", users=True),
    Row("useradd --system, groupadd, usermod", "groupadd g; useradd -r s; usermod -aG g s; id -nG s", "s g", users=True),
    Row("userdel", BOB + "userdel -r bob 2>/dev/null; ls /home | wc -l", "0", users=True),
    Row("adduser", "adduser --disabled-password --gecos '' eve > /dev/null 2>&1; id -un eve", "eve", ("adduser",), users=True),
    Row("chpasswd, passwd", BOB + "echo bob:secret | chpasswd; passwd -S bob | cut -d' ' -f2", "P", users=True),
    Row("su - and its environment", BOB + "su - bob -c 'echo $HOME $USER $PWD'", "/home/bob bob /home/bob", users=True),
    Row(
        "names",
        "getent passwd www-data | cut -d: -f3,6; id -un",
        "33:/var/www\nroot",
        differs={"landlock": ".*"},
        guide=NO_ROOT,
    ),
    Row("find by owner", "touch a b; chown 1234 b; find . -user 1234; find . -nouser", "./b\n./b", users=True),
    Row("PostgreSQL", POSTGRES, "42", ("psql",), users=True),
    Row("apt's sandbox user", "su -s /bin/sh _apt -c 'id -u'", "42", users=True),
    Row(
        "git of another owner",
        "git init -q r; chown -R 9 r; git -C r status 2>&1 | grep -o dubious",
        "dubious",
        ("git",),
        users=True,
    ),
    Row(
        "fakeroot remembers owners",
        FAKEROOT,
        "1000:33\ndone",
        ("fakeroot",),
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
]

test_a_command = table(ROWS)
