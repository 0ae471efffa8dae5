#!/busybox sh
# The first process of the virtual machine, in the archive that the kernel unpacked. The host's / comes by 9p, read only; what is
# written lies on a disk of its own, and is lost.
b=/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod "$module" || echo "no module $module"; done
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 root /lower &&
  $b mount -t ext4 /dev/vda /scratch && $b mkdir -p /scratch/upper /scratch/work /scratch/tmp && $b chmod 1777 /scratch/tmp &&
  $b mount -t overlay -o lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work overlay /root || $b poweroff -f
$b mount --bind /scratch/tmp /root/tmp  # No overlay can have its upper layer on another.
$b mount -t 9p -o rw,trans=virtio,version=9p2000.L,msize=512000 job /root/mnt
$b mount --move /proc /root/proc
$b mount --move /sys /root/sys
$b mount --move /dev /root/dev
if [ -e /root/mnt/command.service ]; then
  # The machine's own units stay out of it.
  $b rm -rf /root/etc/systemd/system/* /root/etc/fstab /root/.dockerenv
  $b cp /root/mnt/command.service /root/etc/systemd/system/
  exec $b switch_root /root /lib/systemd/systemd --unit=command.service --show-status=no
fi
exec $b switch_root /root /bin/sh /mnt/inside.sh
