# Goes on in the host's file system: what a system's own start would have mounted, then the command.
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -onlcr
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
ln -sf /proc/self/fd /dev/fd
busybox ip link set lo up
hostname vm
# As systemd mounts it.
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
. /mnt/settings
if [ -n "$DELEGATED" ]; then
  echo "+memory +cpu +pids" >/sys/fs/cgroup/cgroup.subtree_control
  mkdir /sys/fs/cgroup/delegated
  for name in . cgroup.procs cgroup.subtree_control cgroup.threads; do chown "$DELEGATED" "/sys/fs/cgroup/delegated/$name"; done
  echo $$ >/sys/fs/cgroup/delegated/cgroup.procs
fi
setsid -w /bin/sh /mnt/command </dev/null
echo $? >/mnt/status
sync
busybox poweroff -f
