# Prints all that a program in a sandbox can see of it; ids and times are left out by who compares.
PATH=$PATH:/bin:/usr/bin:/sbin:/usr/sbin
part() { echo "== $1"; }
part processes; for one in /proc/[0-9]*; do read -r name <"$one/comm" && echo "$name"; done 2>/dev/null
part environment; env | sort
part files; find / -xdev -exec stat -c '%n %f %u:%g %h %s %N' {} + 2>&1 | sort
for place in /dev /dev/shm /run /tmp /workspace; do
    part "$place"; find "$place" -xdev -exec stat -c '%n %f %u:%g %s %t:%T %N' {} + 2>&1 | sort
done
part mounts; cut -d' ' -f4- /proc/self/mountinfo
part status; grep -v -e '^Vm' -e '^Rss' -e Pid -e 'ctxt' -e '^Hugetlb' -e '^Ngid' -e '^NS' -e 'Cpus' -e 'Mems' -e '^SigQ' /proc/self/status
part limits; cat /proc/self/limits
part descriptors; for one in /proc/self/fd/*; do readlink "$one"; done | sed 's/[0-9]\+/N/g'
part namespaces; for one in /proc/self/ns/*; do readlink "$one"; done | sed 's/[0-9]\+/N/g'
part ids; cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups 2>&1 | sed 's/ \+[0-9]\+ \+/ /'
part network; for one in dev tcp tcp6 udp udp6 unix raw route; do sed 's/[0-9a-f]\{16\}/N/' "/proc/net/$one" | wc -l; done
cut -d: -f1 /proc/net/dev | sort
part ipc; for one in shm msg sem; do wc -l <"/proc/sysvipc/$one"; done 2>&1
part queues; ls /dev/mqueue 2>&1
part names; hostname; cat /etc/hostname /etc/hosts 2>/dev/null
part groups; cat /proc/self/cgroup
part users; id; umask; pwd
