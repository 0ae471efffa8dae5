"""Databases and servers, each with a client of its own."""

from __future__ import annotations

from tests.ordinary.table import Row, table

NO_ROOT = "Without namespaces"
WAIT = (
    'until_it() { for i in $(seq 300); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done; echo \'it '
    "never came'; return 1; }\n"
)

POSTGRES = (
    WAIT
    + """
export PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -1):$PATH
%(be)s
mkdir db; %(own)s
as_it "initdb -D $PWD/db -A trust > log 2>&1" || { cat log; exit 1; }
as_it "pg_ctl -w -D $PWD/db -o '-k $PWD/db -h \\"\\"' -l $PWD/db/said start > /dev/null" || { cat db/said; exit 1; }
q() { as_it "psql -h $PWD/db -d postgres -qAt -c '$1'"; }
%(then)s
as_it "pg_ctl -w -D $PWD/db stop > /dev/null"
"""
)
AS_ANOTHER = {
    "be": 'useradd -m own-db; chmod 777 .; as_it() { su own-db -s /bin/bash -c "cd $PWD; PATH=$PATH; $1"; }',
    "own": "chown own-db db",
}
QUERIES = "q 'create table t (n int primary key); insert into t select generate_series(1, 1000)'; q 'select sum(n) from t'"
DUMP = (
    QUERIES
    + "; as_it \"pg_dump -h $PWD/db postgres\" | grep -c 'COPY public.t';"
    + " q 'create index on t (n)'; q 'vacuum analyze t'; q 'select count(*) from t'"
)
PYTHON_SQLITE = (
    'import sqlite3; c = sqlite3.connect("own.db"); c.execute("pragma journal_mode=wal"); '
    'c.execute("create table t (n)"); c.executemany("insert into t values (?)", [(i,) for i in '
    'range(1000)]); c.commit(); print(c.execute("select sum(n) from t").fetchone()[0])'
)
REDIS = (
    WAIT
    + """
redis-server --port 0 --unixsocket $PWD/own.sock --dir $PWD --save '' %s \\
  --daemonize yes --pidfile $PWD/pid --logfile $PWD/log > /dev/null
c() { redis-cli -s $PWD/own.sock "$@"; }
until_it c ping
"""
)
NGINX_CONF = """
%(user)s
daemon on; error_log $PWD/error.log; pid $PWD/nginx.pid; worker_processes 2;
events { worker_connections 64; }
http { access_log $PWD/access.log;
  client_body_temp_path $PWD/b; proxy_temp_path $PWD/p; fastcgi_temp_path $PWD/f; uwsgi_temp_path $PWD/u; scgi_temp_path $PWD/s;
  server { listen 127.0.0.1:18125; root $PWD/www; location /again { proxy_pass http://127.0.0.1:18125/index.html; } } }
"""
NGINX = (
    WAIT
    + """
mkdir www; echo 'from nginx' > www/index.html; chmod 755 . www; cat > nginx.conf <<E
%s
E
nginx -e $PWD/error.log -c $PWD/nginx.conf || { cat error.log; exit 1; }
until_it curl -sf http://127.0.0.1:18125/; curl -s http://127.0.0.1:18125/again
"""
)
CERTIFICATES = """
openssl req -x509 -newkey rsa:2048 -nodes -subj '/CN=own CA' -keyout ca.key -out ca.pem -days 2 2> /dev/null
openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out req.pem 2> /dev/null
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' > ext
openssl x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile ext -out cert.pem 2> /dev/null
"""
HTTPS = (
    WAIT
    + CERTIFICATES
    + """
cat > server.py <<'E'
import http.server, os, ssl, subprocess, sys
class Cgi(http.server.CGIHTTPRequestHandler):
    cgi_directories = ["/cgi"]
    def log_message(self, *said): pass
s = http.server.ThreadingHTTPServer(("127.0.0.1", 18126), Cgi)
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain("cert.pem", "key.pem")
s.socket = c.wrap_socket(s.socket, server_side=True); s.serve_forever()
E
python3 -W ignore server.py > log 2>&1 & server=$!
"""
)
GIT = (
    HTTPS
    + """
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.c GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.c
git init -q work; (cd work; echo hi > a; git add a; git commit -q -m one)
git clone -q --bare work own.git; (cd own.git; git update-server-info)
until_it curl -s --cacert ca.pem https://localhost:18126/
"""
)
SSHD = (
    WAIT
    + """
test $(id -u) != 0 || { useradd -r sshd; mkdir -p /run/sshd; }
ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f own;
cp own.pub keys; chmod 600 keys
cat > config <<E
Port 18127
ListenAddress 127.0.0.1
HostKey $PWD/host
AuthorizedKeysFile $PWD/keys
StrictModes no
UsePAM no
PidFile $PWD/pid
Subsystem sftp internal-sftp
E
/usr/sbin/sshd -f $PWD/config -E $PWD/log || { cat log; exit 1; }
S="-q -i own -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"
until_it bash -c "exec 3<>/dev/tcp/127.0.0.1/18127"
"""
)

SSH = ("ssh", "sshd")
LOOPBACK = {"differs": {"landlock": None}, "guide": NO_ROOT}


def as_bob(command: str) -> str:
    """By a user who is made for it, in his own home."""
    return f"cat > /tmp/command <<'OUTER'\n{command}\nOUTER\nuseradd -m bob; su - bob -c 'bash -e /tmp/command'"


ROWS = [
    Row(
        "port 80, as root and as another user",
        "python3 -c 'import socket; s = socket.create_server((\"\", 80)); print(s.getsockname()[1])'; "
        "setpriv --reuid 65534 --clear-groups python3 -c "
        "'import socket; s = socket.create_server((\"\", 443)); print(s.getsockname()[1])'",
        "80\n443",
        ("setpriv",),
        users=True,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "PostgreSQL",
        POSTGRES % (AS_ANOTHER | {"then": QUERIES}),
        "500500",
        ("pg_lsclusters",),
        users=True,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "PostgreSQL, a dump, an index and a clean-up",
        POSTGRES % (AS_ANOTHER | {"then": DUMP}),
        "500500\\s+1\\s+1000",
        ("pg_lsclusters",),
        users=True,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "Redis",
        REDIS % "" + "c set a 1; c incr a; c lpush l x y; c shutdown nosave || true",
        "OK\\s+2\\s+2",
        ("redis-server",),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "Redis, what is kept and read again",
        REDIS % "--appendonly yes"
        + "c set a 42; c save; c shutdown; redis-check-rdb dump.rdb | grep -c 'RDB looks OK'; ls -d appendonlydir",
        "OK\\s+OK\\s+1\\s+appendonlydir",
        ("redis-server",),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "Redis, many clients at once",
        REDIS % "" + "redis-benchmark -s $PWD/own.sock -q -n 2000 -c 20 -t set,get | grep -c 'requests per second'; c "
        "shutdown nosave || true",
        "2",
        ("redis-server", "redis-benchmark"),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "sqlite",
        "sqlite3 own.db 'create table t (n); insert into t values (1), (2); select sum(n) from t; pragma integrity_check'",
        "3\\s+ok",
        ("sqlite3",),
        bare=True,
    ),
    Row("sqlite, a log ahead and Python's", f"python3 -c '{PYTHON_SQLITE}'; ls own.db", "499500\\s+own.db", bare=True),
    Row(
        "sqlite, two writers",
        "sqlite3 own.db 'pragma journal_mode=wal; create table t (n)' > /dev/null; for i in 1 2 3 4; do "
        "sqlite3 -cmd '.timeout 20000' own.db 'insert into t values (1)' & done; wait; sqlite3 own.db "
        "'select count(*) from t'",
        "4",
        ("sqlite3",),
        bare=True,
    ),
    Row(
        "nginx, workers of another user",
        NGINX % (NGINX_CONF % {"user": "user www-data;"})
        + "ps -eo user:20,args | grep -c '^www-data.*nginx: worker'; nginx -s quit -e $PWD/error.log -c $PWD/nginx.conf",
        "from nginx\\s+2",
        ("nginx", "curl", "ps"),
        users=True,
        **LOOPBACK,
    ),
    Row(
        "nginx, as one user",
        NGINX % (NGINX_CONF % {"user": ""}) + "nginx -s quit -e $PWD/error.log -c $PWD/nginx.conf",
        "from nginx",
        ("nginx", "curl"),
        **LOOPBACK,
    ),
    Row(
        "nginx, its settings are looked at", "nginx -t 2>&1 | tail -1", ".*test (is successful|failed)", ("nginx",), **LOOPBACK
    ),
    Row(
        "git over https",
        GIT + "export GIT_SSL_CAINFO=$PWD/ca.pem; git clone -q https://localhost:18126/own.git copy; cat copy/a; kill $server",
        "hi",
        ("git", "openssl", "curl"),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "git over https, nobody trusts the server",
        GIT + "git clone -q https://localhost:18126/own.git copy 2>&1 | grep -c -i 'certificate'; kill $server",
        "1",
        ("git", "openssl", "curl"),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "curl, wget and Python over https",
        HTTPS + "echo hi > a; until_it curl -s --cacert ca.pem https://localhost:18126/; curl -s --cacert ca.pem "
        "https://localhost:18126/a; wget -q --ca-certificate ca.pem -O - https://localhost:18126/a; "
        "SSL_CERT_FILE=ca.pem python3 -c 'import urllib.request as u; "
        'print(u.urlopen("https://localhost:18126/a").read())\'; kill $server',
        "hi\\s+hi\\s+b'hi.n'",
        ("curl", "wget", "openssl"),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "node over https",
        HTTPS + "echo hi > a; until_it curl -s --cacert ca.pem https://localhost:18126/; NODE_EXTRA_CA_CERTS=ca.pem "
        "node -e 'fetch(\"https://localhost:18126/a\").then(r => r.text()).then(t => console.log(t))'; kill "
        "$server",
        "hi",
        ("node", "curl", "openssl"),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "git by itself",
        "git init -q own; cd own; git config user.name a; git config user.email a@b.c; echo 1 > a; git add "
        ".; git commit -q -m one; git switch -q -c two; echo 2 > a; git commit -q -a -m two; git switch -q "
        "-; git merge -q two; git log --oneline | wc -l; git worktree add -q ../there; cat ../there/a; git "
        "gc -q; git fsck 2>/dev/null; git stash list",
        "2\\s+2",
        ("git",),
        bare=True,
    ),
    Row(
        "git, a submodule and a push",
        "export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always "
        "GIT_CONFIG_KEY_1=user.name GIT_CONFIG_VALUE_1=a GIT_CONFIG_KEY_2=user.email GIT_CONFIG_VALUE_2=a; "
        "git init -q --bare far; git init -q sub; (cd sub; echo s > s; git add .; git commit -q -m s); git "
        "clone -q far near 2>/dev/null; cd near; git submodule --quiet add $PWD/../sub sub; git commit -q -m "
        "one; git push -q origin HEAD; git -C ../far log --all --oneline | wc -l; git clone -q --recursive "
        "../far ../again; cat ../again/sub/s",
        "1\\s+s",
        ("git",),
        bare=True,
    ),
    Row(
        "ssh to a server of root's",
        SSHD + "ssh $S -p 18127 127.0.0.1 'echo from ssh' || grep -o 'chroot.*Operation not permitted' log",
        "from ssh",
        SSH,
        users=True,
        differs={"local": r"chroot\(.*Operation not permitted", "landlock": None},
        guide="What is refused",
    ),
    Row(
        "ssh to a server of another user's",
        as_bob(
            SSHD + "ssh $S -p 18127 127.0.0.1 'echo from ssh'; scp $S -P 18127 keys 127.0.0.1:$PWD/copied;"
            " cmp keys copied && kill $(cat pid)"
        ),
        "from ssh",
        SSH,
        users=True,
        **LOOPBACK,
    ),
    Row(
        "rsync over ssh",
        as_bob(
            SSHD + 'mkdir a; echo hi > a/b; rsync -a -e "ssh $S -p 18127" a/ 127.0.0.1:$PWD/there/; cat there/b;'
            " kill $(cat pid)"
        ),
        "hi",
        (*SSH, "rsync"),
        users=True,
        **LOOPBACK,
    ),
    Row(
        "openssl's server and client",
        WAIT
        + CERTIFICATES
        + "openssl s_server -accept 127.0.0.1:18128 -cert cert.pem -key key.pem -www > /dev/null 2>&1 & s=$!; "
        "until_it curl -s --cacert ca.pem https://localhost:18128/; echo | openssl s_client -connect "
        "127.0.0.1:18128 -CAfile ca.pem 2>/dev/null | grep 'Verify return code' | head -1; kill $s",
        r"\s*Verify return code: 0 \(ok\)",
        ("openssl", "curl"),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "sockets of all kinds",
        "python3 - <<'E'\nimport socket as s\nfor f, a in ((s.AF_INET, ('127.0.0.1', 0)), (s.AF_INET6, "
        "('::1', 0)), (s.AF_UNIX, 'own.sock'), (s.AF_UNIX, '\\0own')):\n    x = s.socket(f); x.bind(a); "
        "x.listen(); c = s.create_connection(x.getsockname()[:2]) if f != s.AF_UNIX else s.socket(f)\n    f "
        "== s.AF_UNIX and c.connect(x.getsockname()); x.accept()[0].send(b'hi'); print(c.recv(2))\nE",
        r"(b'hi'\s*){4}",
        (),
        bare=True,
        **LOOPBACK,
    ),
    Row(
        "one's own address and ways",
        "ip -br addr show lo | awk '{ print $1, $3 }'; ip route | wc -l",
        "lo 127.0.0.1/8\\s+\\d+",
        ("ip",),
        **LOOPBACK,
    ),
]

test_a_command = table(ROWS, always=9)
