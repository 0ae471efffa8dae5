//! The kernel's calls as safe functions. The only file with `unsafe`: each block says why it holds.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::raw::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

#[cfg(target_arch = "x86_64")]
mod arch {
    pub const O_DIRECTORY: i32 = 0o200_000;
    pub const O_NOFOLLOW: i32 = 0o400_000;
    pub const SCHED_SETATTR: i64 = 314;
    pub const CLONE: i64 = 56;
    pub const VFORK: Option<i64> = Some(58);
    pub const PIVOT_ROOT: i64 = 155;
    pub const KEYCTL: i64 = 250;
    pub const SECCOMP: i64 = 317;
}
#[cfg(target_arch = "aarch64")]
mod arch {
    pub const O_DIRECTORY: i32 = 0o40_000;
    pub const O_NOFOLLOW: i32 = 0o100_000;
    pub const SCHED_SETATTR: i64 = 274;
    pub const CLONE: i64 = 220;
    pub const VFORK: Option<i64> = None;
    pub const PIVOT_ROOT: i64 = 41;
    pub const KEYCTL: i64 = 219;
    pub const SECCOMP: i64 = 277;
}
pub use arch::{O_DIRECTORY, O_NOFOLLOW};

pub const O_RDONLY: i32 = 0;
pub const O_WRONLY: i32 = 1;
pub const O_RDWR: i32 = 2;
pub const O_CREAT: i32 = 0o100;
pub const O_EXCL: i32 = 0o200;
pub const O_NOCTTY: i32 = 0o400;
pub const O_APPEND: i32 = 0o2000;
pub const O_NONBLOCK: i32 = 0o4000;
pub const O_PATH: i32 = 0o10_000_000;
pub const O_NOATIME: i32 = 0o1_000_000;
pub const O_TRUNC: i32 = 0o1000;
const O_CLOEXEC: i32 = 0o2_000_000;

pub const ENOENT: i32 = 2;
pub const ESRCH: i32 = 3;
pub const E2BIG: i32 = 7;
pub const EINTR: i32 = 4;
pub const EIO: i32 = 5;
pub const ENXIO: i32 = 6;
pub const EAGAIN: i32 = 11;
pub const ENOMEM: i32 = 12;
pub const EACCES: i32 = 13;
pub const EPERM: i32 = 1;
pub const EFAULT: i32 = 14;
pub const EEXIST: i32 = 17;
pub const ENODATA: i32 = 61;
pub const ENODEV: i32 = 19;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const ENFILE: i32 = 23;
pub const EMFILE: i32 = 24;
pub const EFBIG: i32 = 27;
pub const ENOSPC: i32 = 28;
pub const EROFS: i32 = 30;
pub const EPIPE: i32 = 32;
pub const ERANGE: i32 = 34;
pub const ENOSYS: i32 = 38;
pub const ENOTEMPTY: i32 = 39;
pub const ELOOP: i32 = 40;
pub const EOPNOTSUPP: i32 = 95;
pub const ENOBUFS: i32 = 105;
pub const ETIMEDOUT: i32 = 110;
pub const ECONNREFUSED: i32 = 111;
pub const EDQUOT: i32 = 122;

pub const SIGHUP: i32 = 1;
pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGSTOP: i32 = 19;
/// By this process: interrupts, and what the standard library ignores. A command ignores none.
const IGNORED: [c_int; 2] = [2, 13];
pub const LAST_SIGNAL: i32 = 64;

pub const S_IFMT: u32 = 0o170_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFLNK: u32 = 0o120_000;
pub const S_IFCHR: u32 = 0o020_000;
pub const S_IFIFO: u32 = 0o010_000;

pub const AT_FDCWD: RawFd = -100;
const AT_SYMLINK_NOFOLLOW: c_int = 0x100;
const AT_REMOVEDIR: c_int = 0x200;
const AT_EMPTY_PATH: c_int = 0x1000;
const STATX_BASIC_STATS: c_uint = 0x7ff;
const RENAME_EXCHANGE: c_uint = 2;

pub const EPOLLIN: u32 = 1;
pub const EPOLLOUT: u32 = 4;
pub const EPOLLERR: u32 = 8;
pub const EPOLLHUP: u32 = 16;
const EPOLL_CLOEXEC: c_int = O_CLOEXEC;
const EPOLL_CTL_ADD: c_int = 1;
const EPOLL_CTL_DEL: c_int = 2;
const EPOLL_CTL_MOD: c_int = 3;

pub const CLONE_NEWNS: u64 = 0x0002_0000;
pub const CLONE_NEWCGROUP: u64 = 0x0200_0000;
pub const CLONE_NEWUTS: u64 = 0x0400_0000;
pub const CLONE_NEWIPC: u64 = 0x0800_0000;
pub const CLONE_NEWUSER: u64 = 0x1000_0000;
pub const CLONE_NEWPID: u64 = 0x2000_0000;
pub const CLONE_NEWNET: u64 = 0x4000_0000;
const CLONE_PIDFD: u64 = 0x0000_1000;
const CLONE_INTO_CGROUP: u64 = 1 << 33;

pub const MS_RDONLY: u64 = 1;
pub const MS_NOSUID: u64 = 2;
pub const MS_NODEV: u64 = 4;
pub const MS_NOEXEC: u64 = 8;
pub const MS_REMOUNT: u64 = 32;
pub const MS_NOATIME: u64 = 1024;
pub const MS_NODIRATIME: u64 = 2048;
pub const MS_BIND: u64 = 4096;
pub const MS_REC: u64 = 16_384;
pub const MS_PRIVATE: u64 = 1 << 18;
pub const MS_RELATIME: u64 = 1 << 21;
const MNT_DETACH: c_int = 2;
pub const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const AT_RECURSIVE: c_uint = 0x8000;
const OPEN_TREE_CLONE: c_uint = 1;
const MOVE_MOUNT_F_EMPTY_PATH: c_uint = 4;
const SYS_OPEN_TREE: c_long = 428;
const SYS_MOVE_MOUNT: c_long = 429;
const SYS_CLONE3: c_long = 435;
const SYS_CLOSE_RANGE: c_long = 436;
const SYS_MOUNT_SETATTR: c_long = 442;

pub const PR_SET_DUMPABLE: c_int = 4;
const PR_SET_NAME: c_int = 15;
const PR_CAPBSET_DROP: c_int = 24;
pub const PR_SET_CHILD_SUBREAPER: c_int = 36;
pub const PR_SET_NO_NEW_PRIVS: c_int = 38;
const PR_CAP_AMBIENT: c_int = 47;

const AF_UNIX: c_int = 1;
const AF_INET: c_int = 2;
const AF_INET6: c_int = 10;
const AF_NETLINK: c_int = 16;
const NETLINK_SOCK_DIAG: c_int = 4;
const SOCK_STREAM: c_int = 1;
const SOCK_DGRAM: c_int = 2;
const SOCK_RAW: c_int = 3;
const SOCK_SEQPACKET: c_int = 5;
const SOL_SOCKET: c_int = 1;
const SCM_RIGHTS: c_int = 1;
const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;
const MSG_NOSIGNAL: c_int = 0x4000;
const SIOCGIFFLAGS: c_ulong = 0x8913;
const SIOCSIFFLAGS: c_ulong = 0x8914;
const IFF_UP: u16 = 1;
const SECCOMP_SET_MODE_FILTER: c_uint = 1;
const SECCOMP_FILTER_FLAG_SPEC_ALLOW: c_uint = 4;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
const LOCK_EXCLUSIVE_NOW: c_int = 2 | 4;
const CLOCK_MONOTONIC: c_int = 1;
const F_GETFL: c_int = 3;
const F_SETFL: c_int = 4;
const F_DUPFD_CLOEXEC: c_int = 1030;
const F_SETPIPE_SZ: c_int = 1031;
const FIONREAD: c_ulong = 0x541B;
const TCGETS: c_ulong = 0x5401;
const TCSETS: c_ulong = 0x5402;
const TIOCSWINSZ: c_ulong = 0x5414;
const TIOCGPGRP: c_ulong = 0x540F;
const TIOCGPTN: c_ulong = 0x8004_5430;
const TIOCSPTLCK: c_ulong = 0x4004_5431;
const IUTF8: u32 = 0o40_000;
const WNOHANG: c_int = 1;
const WEXITED: c_int = 4;
const WNOWAIT: c_int = 0x0100_0000;
const WALL: c_int = 0x4000_0000;
const RLIMIT_NPROC: c_int = 6;
const RLIMIT_NOFILE: c_int = 7;
pub const NO_LIMIT: u64 = u64::MAX;
const SYS_OPENAT2: c_long = 437;
#[cfg(target_arch = "x86_64")]
const SYS_GETDENTS64: c_long = 217;
#[cfg(target_arch = "aarch64")]
const SYS_GETDENTS64: c_long = 61;
const RESOLVE_NO_MAGICLINKS: u64 = 2;
const PROT_READ_WRITE: c_int = 3;
const MAP_PRIVATE_ANONYMOUS: c_int = 0x22;
const MADV_DONTNEED: c_int = 4;
const MADV_DONTFORK: c_int = 10;
const SIG_DFL: usize = 0;
const SIG_SETMASK: c_int = 2;
const SIG_BLOCK: c_int = 0;

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Timeval {
    seconds: i64,
    microseconds: i64,
}

#[repr(C)]
struct Rusage {
    user: Timeval,
    system: Timeval,
    max_rss_kib: c_long,
    rest: [c_long; 13],
}

#[repr(C)]
struct Rlimit {
    soft: u64,
    hard: u64,
}

#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
#[derive(Clone, Copy)]
struct EpollEvent {
    events: u32,
    data: u64,
}

#[repr(C)]
struct StatxTime {
    seconds: i64,
    nanoseconds: u32,
    reserved: i32,
}

#[repr(C)]
struct Statx {
    mask: u32,
    block_size: u32,
    attributes: u64,
    links: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    spare: u16,
    inode: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    accessed: StatxTime,
    born: StatxTime,
    changed: StatxTime,
    modified: StatxTime,
    rdev: [u32; 2],
    device: [u32; 2],
    rest: [u64; 14],
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

#[repr(C)]
struct IoVec {
    base: *const c_void,
    length: usize,
}

#[repr(C)]
struct MessageHead {
    name: *mut c_void,
    name_length: c_uint,
    pieces: *mut IoVec,
    piece_count: usize,
    control: *mut c_void,
    control_length: usize,
    flags: c_int,
}

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: i16,
    returned: i16,
}

type SignalSet = [u64; 16];

/// So many descriptors at most come or go with one message.
/// As many as the kernel lets a message have, but for one.
const MOST_DESCRIPTORS: usize = 252;
/// Room for them behind their head, in words.
type ControlRoom = [u64; 2 + MOST_DESCRIPTORS / 2];

extern "C" {
    static environ: *const *mut c_char;
    fn accept4(fd: c_int, address: *mut c_void, length: *mut c_uint, flags: c_int) -> c_int;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn chdir(path: *const c_char) -> c_int;
    fn clone(
        work: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        ...
    ) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut EpollEvent) -> c_int;
    fn epoll_wait(epoll: c_int, events: *mut EpollEvent, most: c_int, milliseconds: c_int) -> c_int;
    fn execve(path: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn fchdir(fd: c_int) -> c_int;
    fn fchmod(fd: c_int, mode: c_uint) -> c_int;
    fn chmod(path: *const c_char, mode: c_uint) -> c_int;
    fn fchown(fd: c_int, uid: c_uint, gid: c_uint) -> c_int;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, length: usize) -> isize;
    fn flistxattr(fd: c_int, names: *mut c_char, length: usize) -> isize;
    fn fork() -> c_int;
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, length: usize, flags: c_int) -> c_int;
    fn fsync(fd: c_int) -> c_int;
    fn fstatfs(fd: c_int, found: *mut c_void) -> c_int;
    fn ftruncate(fd: c_int, size: i64) -> c_int;
    fn futimens(fd: c_int, times: *const Timespec) -> c_int;
    fn getpid() -> c_int;
    fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize;
    fn getrlimit(resource: c_int, limit: *mut Rlimit) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn linkat(from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_int) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64;
    fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    #[cfg(target_env = "gnu")]
    fn malloc_trim(kept: usize) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn mkdirat(directory: c_int, path: *const c_char, mode: c_uint) -> c_int;
    fn mknodat(directory: c_int, path: *const c_char, mode: c_uint, device: u64) -> c_int;
    fn mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(address: *mut c_void, length: usize) -> c_int;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn openat(directory: c_int, path: *const c_char, flags: c_int, ...) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn prctl(option: c_int, ...) -> c_int;
    fn read(fd: c_int, buffer: *mut c_void, length: usize) -> isize;
    fn readlinkat(directory: c_int, path: *const c_char, buffer: *mut c_char, length: usize) -> isize;
    fn renameat(from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int;
    fn renameat2(from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int;
    fn setpriority(which: c_int, who: c_uint, value: c_int) -> c_int;
    fn setrlimit(resource: c_int, limit: *const Rlimit) -> c_int;
    fn setsid() -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_int, length: c_uint) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn signalfd(fd: c_int, mask: *const SignalSet, flags: c_int) -> c_int;
    fn sigprocmask(how: c_int, set: *const SignalSet, old: *mut SignalSet) -> c_int;
    fn statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, found: *mut Statx) -> c_int;
    fn strerror_r(number: c_int, buffer: *mut c_char, length: usize) -> *const c_char;
    fn symlinkat(target: *const c_char, directory: c_int, path: *const c_char) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn utimensat(directory: c_int, path: *const c_char, times: *const Timespec, flags: c_int) -> c_int;
    fn wait4(pid: c_int, status: *mut c_int, options: c_int, usage: *mut Rusage) -> c_int;
    fn waitid(kind: c_int, id: c_uint, information: *mut c_void, options: c_int) -> c_int;
    fn capset(head: *const u32, data: *const u32) -> c_int;
    fn bind(fd: c_int, address: *const c_void, length: c_uint) -> c_int;
    fn fchownat(directory: c_int, path: *const c_char, uid: c_uint, gid: c_uint, flags: c_int) -> c_int;
    fn flock(fd: c_int, operation: c_int) -> c_int;
    fn mount(
        source: *const c_char,
        target: *const c_char,
        kind: *const c_char,
        flags: c_ulong,
        options: *const c_char,
    ) -> c_int;
    fn recvmsg(fd: c_int, message: *mut MessageHead, flags: c_int) -> isize;
    fn sched_setaffinity(pid: c_int, size: usize, set: *const u64) -> c_int;
    fn sendfile(to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize;
    fn sendmsg(fd: c_int, message: *const MessageHead, flags: c_int) -> isize;
    fn setgroups(count: usize, groups: *const c_uint) -> c_int;
    fn setns(fd: c_int, kind: c_int) -> c_int;
    fn sethostname(name: *const c_char, length: usize) -> c_int;
    fn setresgid(real: c_uint, effective: c_uint, saved: c_uint) -> c_int;
    fn setresuid(real: c_uint, effective: c_uint, saved: c_uint) -> c_int;
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(family: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    fn umask(mask: c_uint) -> c_uint;
    fn chroot(path: *const c_char) -> c_int;
    fn umount2(target: *const c_char, flags: c_int) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn geteuid() -> c_uint;
    fn getegid() -> c_uint;
    fn poll(fds: *mut PollFd, count: c_ulong, milliseconds: c_int) -> c_int;
    fn connect(fd: c_int, address: *const c_void, length: c_uint) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_int, length: *mut c_uint) -> c_int;
    fn getsockname(fd: c_int, address: *mut c_void, length: *mut c_uint) -> c_int;
    fn getpeername(fd: c_int, address: *mut c_void, length: *mut c_uint) -> c_int;
    fn msgctl(id: c_int, command: c_int, buffer: *mut c_void) -> c_int;
    fn semctl(id: c_int, number: c_int, command: c_int) -> c_int;
    fn shmctl(id: c_int, command: c_int, buffer: *mut c_void) -> c_int;
    fn pread(fd: c_int, buffer: *mut c_void, length: usize, offset: i64) -> isize;
    fn pwrite(fd: c_int, buffer: *const c_void, length: usize, offset: i64) -> isize;
    fn splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: usize, flags: c_uint)
        -> isize;
    fn write(fd: c_int, buffer: *const c_void, length: usize) -> isize;
    fn writev(fd: c_int, pieces: *const IoVec, count: c_int) -> isize;
    fn _exit(code: c_int) -> !;
}

/// The result of a call that returns -1 where it fails.
fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_size(result: isize) -> io::Result<usize> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as usize)
    }
}

/// A new descriptor, by a call that gives one.
fn owned(result: c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the call has just made it, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A string as the kernel takes it.
///
/// # Errors
/// `EINVAL` where it has a null byte.
fn text(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(EINVAL))
}

/// The number of an error, 0 of one that is not the kernel's.
pub fn number_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// What the C library says of an error's number.
pub fn describe(number: i32) -> String {
    let mut buffer = [0 as c_char; 128];
    // SAFETY: the GNU form returns a string that ends, in the buffer or a constant; the buffer is as long as said.
    let said = unsafe { CStr::from_ptr(strerror_r(number, buffer.as_mut_ptr(), buffer.len())) };
    said.to_string_lossy().into_owned()
}

/// Takes a descriptor that this process was started with.
///
/// # Errors
/// `EBADF` where there is none.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain call.
    check(unsafe { fcntl(fd, F_GETFL) })?;
    // SAFETY: it is open, and main adopts each number once.
    let adopted = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain call; 2 is F_SETFD, 1 is FD_CLOEXEC.
    check(unsafe { fcntl(fd, 2, 1 as c_int) })?;
    Ok(adopted)
}

/// Nanoseconds of a clock that only goes on.
pub fn now() -> u64 {
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the structure is writable; this clock is always there.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

/// How long this process has run on a processor, in nanoseconds.
pub fn own_processor_time() -> u64 {
    const CLOCK_PROCESS_CPUTIME: c_int = 2;
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the structure is writable; this clock is always there.
    unsafe { clock_gettime(CLOCK_PROCESS_CPUTIME, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

/// How long a process has run, in nanoseconds; `None` of one that is gone. Cheap: who has not run has not changed.
pub fn processor_time(pid: i32) -> Option<u64> {
    const SCHEDULED: c_int = 2;
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the structure is writable.
    let result = unsafe { clock_gettime(!pid << 3 | SCHEDULED, &mut time) };
    (result == 0).then_some(time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64)
}

/// Fills a buffer with random bytes.
pub fn random(buffer: &mut [u8]) {
    // SAFETY: the buffer is as long as said. So few bytes come whole once the machine has started.
    unsafe { getrandom(buffer.as_mut_ptr().cast(), buffer.len(), 0) };
}

pub fn process_id() -> i32 {
    // SAFETY: plain call.
    unsafe { getpid() }
}

/// Ends this process at once.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: plain call.
    unsafe { _exit(code) }
}

// -- descriptors ----------------------------------------------------------------------------------------------------------

pub fn read_some(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the buffer is as long as said.
        let result = check_size(unsafe { read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) });
        match result {
            Err(error) if number_of(&error) == EINTR => {}
            other => return other,
        }
    }
}

pub fn write_some(fd: &OwnedFd, data: &[u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the data is as long as said.
        let result = check_size(unsafe { write(fd.as_raw_fd(), data.as_ptr().cast(), data.len()) });
        match result {
            Err(error) if number_of(&error) == EINTR => {}
            other => return other,
        }
    }
}

/// Reads from an offset.
pub fn read_from(fd: &OwnedFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    // SAFETY: the buffer is as long as said.
    check_size(unsafe { pread(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), offset as i64) })
}

/// Moves what a pipe has to an offset of a file, without waiting for more; how much.
pub fn move_to(pipe: &OwnedFd, file: &OwnedFd, offset: u64, most: usize) -> io::Result<usize> {
    const SPLICE_F_NONBLOCK: c_uint = 2;
    let mut offset = offset as i64;
    let (from, to) = (pipe.as_raw_fd(), file.as_raw_fd());
    // SAFETY: the offset is writable.
    check_size(unsafe { splice(from, ptr::null_mut(), to, &mut offset, most, SPLICE_F_NONBLOCK) })
}

/// Writes at an offset; how much of it.
pub fn write_to(fd: &OwnedFd, data: &[u8], offset: u64) -> io::Result<usize> {
    // SAFETY: it is as long as said.
    check_size(unsafe { pwrite(fd.as_raw_fd(), data.as_ptr().cast(), data.len(), offset as i64) })
}

/// How much a pipe can hold.
pub fn pipe_size(fd: &OwnedFd) -> io::Result<u64> {
    const F_GETPIPE_SZ: c_int = 1032;
    // SAFETY: plain call.
    check(unsafe { fcntl(fd.as_raw_fd(), F_GETPIPE_SZ) }).map(|size| size as u64)
}

/// What System V keeps for nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemV {
    Shared,
    Semaphores,
    Messages,
}

/// Takes one away.
pub fn remove_system_v(kind: SystemV, id: i32) {
    const IPC_RMID: c_int = 0;
    // SAFETY: with this command no buffer is looked at.
    unsafe {
        match kind {
            SystemV::Shared => shmctl(id, IPC_RMID, ptr::null_mut()),
            SystemV::Semaphores => semctl(id, 0, IPC_RMID),
            SystemV::Messages => msgctl(id, IPC_RMID, ptr::null_mut()),
        }
    };
}

/// Writes all of it to a file.
pub fn write_all(fd: &OwnedFd, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let count = write_some(fd, data)?;
        data = &data[count..];
    }
    Ok(())
}

/// Writes several pieces, as far as they are taken.
pub fn write_pieces<'a>(fd: &OwnedFd, pieces: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    let vectors: Vec<IoVec> = pieces.map(|piece| IoVec { base: piece.as_ptr().cast(), length: piece.len() }).collect();
    // SAFETY: each piece is borrowed until the end of this call, and as long as said.
    check_size(unsafe { writev(fd.as_raw_fd(), vectors.as_ptr(), vectors.len() as c_int) })
}

/// A pipe: its end to read from, and its end to write to.
pub fn make_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: there is room for two numbers.
    check(unsafe { pipe2(fds.as_mut_ptr(), O_CLOEXEC) })?;
    Ok((owned(fds[0])?, owned(fds[1])?))
}

pub fn duplicate(fd: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: plain call.
    owned(unsafe { fcntl(fd.as_raw_fd(), F_DUPFD_CLOEXEC, 0 as c_int) })
}

pub fn never_block(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain calls.
    unsafe {
        let flags = check(fcntl(fd.as_raw_fd(), F_GETFL))?;
        check(fcntl(fd.as_raw_fd(), F_SETFL, flags | O_NONBLOCK)).map(drop)
    }
}

/// A file in memory, without a name and for no child.
pub fn make_memory_file() -> io::Result<OwnedFd> {
    const CLOSE_ON_EXEC: c_uint = 1;
    const ALLOW_SEALING: c_uint = 2;
    // SAFETY: the name ends.
    owned(unsafe { memfd_create(b"stdin\0".as_ptr().cast(), CLOSE_ON_EXEC | ALLOW_SEALING) })
}

/// Nobody changes such a file any more, nor keeps anything of his own in it.
pub fn seal(fd: &OwnedFd) -> io::Result<()> {
    const F_ADD_SEALS: c_int = 1033;
    const ALL: c_int = 1 | 2 | 4 | 8;
    // SAFETY: plain call.
    check(unsafe { fcntl(fd.as_raw_fd(), F_ADD_SEALS, ALL) }).map(drop)
}

/// Asks for a larger pipe; a terminal has no size, and a user may have too much in pipes already.
pub fn widen_pipe(fd: &OwnedFd, bytes: usize) {
    // SAFETY: plain call.
    unsafe { fcntl(fd.as_raw_fd(), F_SETPIPE_SZ, bytes as c_int) };
}

/// How much was written to a pipe or terminal and not read yet; by either end.
pub fn unread_bytes(fd: &OwnedFd) -> u64 {
    let mut count: c_int = 0;
    // SAFETY: the call writes one int.
    unsafe { ioctl(fd.as_raw_fd(), FIONREAD, &mut count as *mut c_int) };
    count.max(0) as u64
}

/// Listens, which writes this process into the socket: a server finds it by the credentials of its peer.
pub fn listen_again(fd: &OwnedFd, backlog: i32) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// The next connection, which does not block.
pub fn accept(fd: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: nothing is asked of the other side's address.
    owned(unsafe { accept4(fd.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), O_CLOEXEC | O_NONBLOCK) })
}

// -- epoll ----------------------------------------------------------------------------------------------------------------

/// What happened to a descriptor that is watched.
#[derive(Clone, Copy)]
pub struct Event {
    pub data: u64,
    pub events: u32,
}

pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: plain call.
        owned(unsafe { epoll_create1(EPOLL_CLOEXEC) }).map(Epoll)
    }

    pub fn add(&self, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        self.control(EPOLL_CTL_ADD, fd, events, data)
    }

    pub fn change(&self, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        self.control(EPOLL_CTL_MOD, fd, events, data)
    }

    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, operation: c_int, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = EpollEvent { events, data };
        // SAFETY: the kernel reads the structure during the call.
        check(unsafe { epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) }).map(drop)
    }

    /// Waits; `None` is as long as it takes. A wait that a signal cuts short has seen nothing.
    pub fn wait(&self, milliseconds: Option<i32>, found: &mut Vec<Event>) {
        let mut events = [EpollEvent { events: 0, data: 0 }; 64];
        // SAFETY: there is room for as many as said.
        let count = unsafe { epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, milliseconds.unwrap_or(-1)) };
        found.clear();
        found.extend(events[..count.max(0) as usize].iter().map(|one| Event { data: one.data, events: one.events }));
    }
}

// -- memory ---------------------------------------------------------------------------------------------------------------

/// Gives the kernel what was allocated and is free again. Other C libraries than glibc keep little of it.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain call.
    unsafe {
        malloc_trim(0);
    }
}

/// Memory of its own: what is not touched takes no room, and no child gets a copy.
pub struct Room {
    address: *mut c_void,
    length: usize,
}

impl Room {
    /// None at all.
    pub fn none() -> Room {
        Room { address: ptr::NonNull::<u8>::dangling().as_ptr().cast(), length: 0 }
    }

    pub fn new(length: usize) -> io::Result<Room> {
        // SAFETY: the kernel chooses the place.
        let address = unsafe { mmap(ptr::null_mut(), length, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0) };
        if address as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is the mapping just made.
        unsafe { madvise(address, length, MADV_DONTFORK) };
        Ok(Room { address, length })
    }

    /// Gives the pages back; what was in them is zero then.
    pub fn release(&mut self) {
        if self.length > 0 {
            // SAFETY: it is this mapping, and `&mut` says that nobody reads it.
            unsafe { madvise(self.address, self.length, MADV_DONTNEED) };
        }
    }
}

impl Deref for Room {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is that long, readable, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length) }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.length) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: it is this mapping, to which nothing refers any more.
            unsafe { munmap(self.address, self.length) };
        }
    }
}

// -- paths ----------------------------------------------------------------------------------------------------------------

/// What is known of a file.
pub struct Stat {
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub blocks: u64,
    pub inode: u64,
    pub device: u64,
    /// Of a device: which one it is.
    pub number: u64,
    pub modified_nanoseconds: i128,
    pub changed_nanoseconds: i128,
}

impl Stat {
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    pub fn is_directory(&self) -> bool {
        self.kind() == S_IFDIR
    }

    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// A device's number as stat(2) has it.
fn device_number([major, minor]: [u32; 2]) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | minor & 0xff
}

fn nanoseconds_of(time: &StatxTime) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

fn stat_by(directory: RawFd, path: &CStr, flags: c_int) -> io::Result<Stat> {
    // SAFETY: all zeros is a value of this structure of integers.
    let mut found: Statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends, and the structure is the kernel's, of 256 bytes.
    check(unsafe { statx(directory, path.as_ptr(), flags, STATX_BASIC_STATS, &mut found) })?;
    Ok(Stat {
        mode: u32::from(found.mode),
        links: found.links,
        uid: found.uid,
        gid: found.gid,
        size: found.size,
        blocks: found.blocks,
        inode: found.inode,
        device: device_number(found.device),
        number: device_number(found.rdev),
        modified_nanoseconds: nanoseconds_of(&found.modified),
        changed_nanoseconds: nanoseconds_of(&found.changed),
    })
}

/// What is open.
pub fn stat_open(fd: &OwnedFd) -> io::Result<Stat> {
    stat_by(fd.as_raw_fd(), &text(b"")?, AT_EMPTY_PATH)
}

/// What has a name in a directory; a link is not followed.
pub fn stat_at(directory: RawFd, name: &[u8]) -> io::Result<Stat> {
    stat_by(directory, &text(name)?, AT_SYMLINK_NOFOLLOW)
}

/// What is at a path; links are followed.
pub fn stat_path(directory: RawFd, path: &[u8]) -> io::Result<Stat> {
    stat_by(directory, &text(path)?, 0)
}

/// Opens by openat(2), close-on-exec.
pub fn open_at(directory: RawFd, path: &[u8], flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let path = text(path)?;
    // SAFETY: the path ends.
    owned(unsafe { openat(directory, path.as_ptr(), flags | O_CLOEXEC, mode as c_uint) })
}

/// Opens by openat2(2), following no link that only the kernel can follow.
pub fn open_no_magic(directory: RawFd, path: &[u8], flags: i32) -> io::Result<OwnedFd> {
    let path = text(path)?;
    let how = OpenHow { flags: (flags | O_CLOEXEC) as u32 as u64, mode: 0, resolve: RESOLVE_NO_MAGICLINKS };
    // SAFETY: the path ends, and the structure is as long as said.
    let result = unsafe {
        syscall(SYS_OPENAT2, directory, path.as_ptr(), &how as *const OpenHow, std::mem::size_of::<OpenHow>())
    };
    owned(result as c_int)
}

/// A file system.
pub struct FileSystem {
    /// The kernel's number of its kind.
    pub kind: i64,
    pub used_bytes: u64,
    pub free_bytes: u64,
    /// Of those, what is not root's alone.
    pub available_bytes: u64,
    pub used_inodes: u64,
    pub free_inodes: u64,
}

/// The file system on which something open lies.
pub fn file_system_of(fd: &OwnedFd) -> io::Result<FileSystem> {
    let mut found = [0_i64; 32];
    // SAFETY: the structure is shorter than this, and of words on these machines.
    check(unsafe { fstatfs(fd.as_raw_fd(), found.as_mut_ptr().cast()) })?;
    let [kind, block, blocks, free, available, inodes, free_inodes, _, _, fragment] =
        [found[0], found[1], found[2], found[3], found[4], found[5], found[6], found[7], found[8], found[9]];
    let size = if fragment > 0 { fragment } else { block } as u64;
    Ok(FileSystem {
        kind,
        used_bytes: (blocks as u64).saturating_sub(free as u64) * size,
        free_bytes: free as u64 * size,
        available_bytes: available as u64 * size,
        used_inodes: (inodes as u64).saturating_sub(free_inodes as u64),
        free_inodes: free_inodes as u64,
    })
}

pub fn read_link(directory: RawFd, name: &[u8]) -> io::Result<Vec<u8>> {
    let name = text(name)?;
    let mut target = vec![0_u8; 4096];
    // SAFETY: the name ends, and there is room for as much as said.
    let length = check_size(unsafe { readlinkat(directory, name.as_ptr(), target.as_mut_ptr().cast(), target.len()) })?;
    target.truncate(length);
    target.shrink_to_fit();
    Ok(target)
}

pub fn make_directory(directory: RawFd, name: &[u8], mode: u32) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends.
    check(unsafe { mkdirat(directory, name.as_ptr(), mode) }).map(drop)
}

pub fn make_link(target: &[u8], directory: RawFd, name: &[u8]) -> io::Result<()> {
    let (target, name) = (text(target)?, text(name)?);
    // SAFETY: both end.
    check(unsafe { symlinkat(target.as_ptr(), directory, name.as_ptr()) }).map(drop)
}

/// A second name of a file, or of a link, which is not followed.
pub fn make_hard_link(from: RawFd, old: &[u8], to: RawFd, new: &[u8]) -> io::Result<()> {
    let (old, new) = (text(old)?, text(new)?);
    // SAFETY: both end.
    check(unsafe { linkat(from, old.as_ptr(), to, new.as_ptr(), 0) }).map(drop)
}

pub fn make_fifo(directory: RawFd, name: &[u8], mode: u32) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends.
    check(unsafe { mknodat(directory, name.as_ptr(), S_IFIFO | mode, 0) }).map(drop)
}

/// The device that in a layer of overlayfs says that there is nothing of this name. Everybody may make it.
pub fn make_whiteout(directory: RawFd, name: &[u8]) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends.
    check(unsafe { mknodat(directory, name.as_ptr(), S_IFCHR, 0) }).map(drop)
}

pub fn unlink(directory: RawFd, name: &[u8]) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends.
    check(unsafe { unlinkat(directory, name.as_ptr(), 0) }).map(drop)
}

pub fn remove_directory(directory: RawFd, name: &[u8]) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends.
    check(unsafe { unlinkat(directory, name.as_ptr(), AT_REMOVEDIR) }).map(drop)
}

pub fn rename(from: RawFd, old: &[u8], to: RawFd, new: &[u8]) -> io::Result<()> {
    let (old, new) = (text(old)?, text(new)?);
    // SAFETY: both end.
    check(unsafe { renameat(from, old.as_ptr(), to, new.as_ptr()) }).map(drop)
}

/// Exchanges two names of a directory in one step.
pub fn exchange(directory: RawFd, one: &[u8], other: &[u8]) -> io::Result<()> {
    let (one, other) = (text(one)?, text(other)?);
    // SAFETY: both end.
    check(unsafe { renameat2(directory, one.as_ptr(), directory, other.as_ptr(), RENAME_EXCHANGE) }).map(drop)
}

/// Gives what is open to a user.
pub fn give(fd: &OwnedFd, uid: u32) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { fchown(fd.as_raw_fd(), uid, u32::MAX) }).map(drop)
}

/// Gives a file another mode. A descriptor that only names one is gone to by /proc.
pub fn set_mode(fd: &OwnedFd, mode: u32) -> io::Result<()> {
    // SAFETY: plain call.
    if unsafe { fchmod(fd.as_raw_fd(), mode) } == 0 {
        return Ok(());
    }
    let path = text(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_bytes())?;
    // SAFETY: the path ends.
    check(unsafe { chmod(path.as_ptr(), mode) }).map(drop)
}

/// Gives a name of a directory, where a link is not followed, times of use and change in whole seconds.
pub fn set_time(directory: RawFd, name: &[u8], seconds: i64) -> io::Result<()> {
    let name = text(name)?;
    let times = [Timespec { seconds, nanoseconds: 0 }, Timespec { seconds, nanoseconds: 0 }];
    // SAFETY: the name ends, and there are two times.
    check(unsafe { utimensat(directory, name.as_ptr(), times.as_ptr(), AT_SYMLINK_NOFOLLOW) }).map(drop)
}

/// The same of what is open.
pub fn set_time_of(fd: &OwnedFd, seconds: i64) -> io::Result<()> {
    let times = [Timespec { seconds, nanoseconds: 0 }, Timespec { seconds, nanoseconds: 0 }];
    // SAFETY: there are two times.
    check(unsafe { futimens(fd.as_raw_fd(), times.as_ptr()) }).map(drop)
}

/// Times of use and change, in nanoseconds.
pub fn set_both_times(fd: &OwnedFd, nanoseconds: i128) -> io::Result<()> {
    let time = || Timespec {
        seconds: nanoseconds.div_euclid(1_000_000_000) as i64,
        nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as i64,
    };
    let times = [time(), time()];
    // SAFETY: there are two times.
    check(unsafe { futimens(fd.as_raw_fd(), times.as_ptr()) }).map(drop)
}

/// Waits until what was written is on disk, or an error is told.
pub fn synchronise(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { fsync(fd.as_raw_fd()) }).map(drop)
}

/// Flags of a directory, and what else a file system keeps that it tells by no other way. One that keeps none has none.
#[derive(PartialEq, Eq)]
pub struct DirectoryProperties([u64; 5]);

pub fn directory_properties(fd: &OwnedFd) -> DirectoryProperties {
    const GET_FLAGS: c_ulong = 0x8008_6601;
    const GET_MORE: c_ulong = 0x801C_581F;
    let mut flags = 0_u64;
    let mut more = [0_u64; 4];
    // SAFETY: the one writes a word, the other 28 bytes.
    unsafe {
        if ioctl(fd.as_raw_fd(), GET_FLAGS, &mut flags as *mut u64) < 0 {
            flags = 0;
        }
        if ioctl(fd.as_raw_fd(), GET_MORE, more.as_mut_ptr()) < 0 {
            more = [0; 4];
        }
    }
    DirectoryProperties([flags, more[0], more[1], more[2], more[3]])
}

/// What fits `small` bytes, and is asked for again where it does not: with room for the most that there can be of names or a value.
fn fitting(small: usize, ask: impl Fn(&mut [u8]) -> isize) -> io::Result<Vec<u8>> {
    const MOST_ATTRIBUTE_BYTES: usize = 64 << 10;
    let mut found = vec![0_u8; small];
    let mut result = check_size(ask(&mut found));
    if matches!(&result, Err(error) if number_of(error) == ERANGE) {
        found.resize(MOST_ATTRIBUTE_BYTES, 0);
        result = check_size(ask(&mut found));
    }
    found.truncate(result?);
    found.shrink_to_fit();
    Ok(found)
}

/// Names of extended attributes, each with a null byte behind it; none where there are no such things.
pub fn attribute_names(fd: &OwnedFd) -> io::Result<Vec<u8>> {
    // SAFETY: there is room for as much as said.
    let names = fitting(64, |room| unsafe { flistxattr(fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) });
    match names {
        Err(error) if number_of(&error) == EOPNOTSUPP => Ok(Vec::new()),
        names => names,
    }
}

/// The value of an extended attribute; `None` where it is not there.
pub fn attribute(fd: &OwnedFd, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let name = text(name)?;
    // SAFETY: the name ends, and there is room for as much as said.
    let ask =
        |room: &mut [u8]| unsafe { fgetxattr(fd.as_raw_fd(), name.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
    match fitting(256, ask) {
        Err(error) if matches!(number_of(&error), ENODATA | EOPNOTSUPP) => Ok(None),
        value => value.map(Some),
    }
}

pub fn set_attribute(fd: &OwnedFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends, and the value is as long as said.
    check(unsafe { fsetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }).map(drop)
}

/// Whether an extended attribute is there and has this value.
pub fn has_attribute(fd: &OwnedFd, name: &[u8], value: &[u8]) -> bool {
    matches!(attribute(fd, name), Ok(Some(found)) if found == value)
}

pub fn set_size(fd: &OwnedFd, size: u64) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { ftruncate(fd.as_raw_fd(), size as i64) }).map(drop)
}

fn seek_by(fd: &OwnedFd, offset: i64, whence: c_int) -> io::Result<()> {
    // SAFETY: plain call.
    if unsafe { lseek(fd.as_raw_fd(), offset, whence) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Goes to an offset.
pub fn seek(fd: &OwnedFd, offset: u64) -> io::Result<()> {
    seek_by(fd, offset as i64, 0)
}

/// Where the next bytes of a file lie that are no hole, from an offset on: their begin and end. `None`: only holes follow.
pub fn next_data(fd: &OwnedFd, offset: u64) -> io::Result<Option<(u64, u64)>> {
    const SEEK_DATA: c_int = 3;
    const SEEK_HOLE: c_int = 4;
    // SAFETY: plain call.
    let find = |offset: u64, what| match unsafe { lseek(fd.as_raw_fd(), offset as i64, what) } {
        found @ 0.. => Ok(found as u64),
        _ => Err(io::Error::last_os_error()),
    };
    match find(offset, SEEK_DATA).and_then(|begin| Ok((begin, find(begin, SEEK_HOLE)?))) {
        Err(error) if number_of(&error) == ENXIO => Ok(None),
        found => found.map(Some),
    }
}

/// Leaves a hole where there would be so many bytes.
pub fn skip(fd: &OwnedFd, count: usize) -> io::Result<()> {
    seek_by(fd, count as i64, 1)
}

/// Whether a path leads to something that may be executed.
pub fn may_execute(path: &[u8]) -> bool {
    // SAFETY: the path ends; 1 is X_OK.
    text(path).map_or(false, |path| unsafe { access(path.as_ptr(), 1) } == 0)
}

pub fn change_directory(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { fchdir(fd.as_raw_fd()) }).map(drop)
}

pub fn leave_directory() {
    // SAFETY: the path ends; the root is there.
    unsafe { chdir(b"/\0".as_ptr().cast()) };
}

/// The next names of an open directory, but for itself and the one above; empty at its end.
pub fn read_names(fd: &OwnedFd, names: &mut Vec<(Vec<u8>, u8)>) -> io::Result<bool> {
    read_some_names(fd, names, &mut [0; 4096])
}

/// As `read_names`, as many as a buffer has room for.
pub fn read_some_names(fd: &OwnedFd, names: &mut Vec<(Vec<u8>, u8)>, buffer: &mut [u8]) -> io::Result<bool> {
    // Inode u64, offset i64, length u16, kind u8.
    const HEAD: usize = 19;
    // SAFETY: the buffer is as long as said.
    let count = check_size(unsafe {
        syscall(SYS_GETDENTS64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len() as c_uint) as isize
    })?;
    let mut at = 0;
    while at + HEAD <= count {
        let length = usize::from(u16::from_ne_bytes([buffer[at + 16], buffer[at + 17]]));
        let entry = &buffer[at + HEAD..(at + length).min(count)];
        let name = entry.split(|byte| *byte == 0).next().unwrap_or(b"");
        if name != b"." && name != b".." {
            names.push((name.to_vec(), buffer[at + 18]));
        }
        at += length.max(HEAD);
    }
    Ok(count > 0)
}

// -- terminals ------------------------------------------------------------------------------------------------------------

/// Makes a new terminal ready: text is UTF-8, the size as said, and who knows its number may open it.
///
/// # Returns
/// Its number.
pub fn unlock_terminal(master: &OwnedFd, width: u16, height: u16) -> io::Result<u32> {
    let fd = master.as_raw_fd();
    let mut attributes = [0_u32; 16];
    let mut unlocked: c_int = 0;
    let mut number: c_uint = 0;
    // SAFETY: the kernel's structure of attributes has 44 bytes and begins with the flags of input.
    unsafe {
        check(ioctl(fd, TCGETS, attributes.as_mut_ptr()))?;
        attributes[0] |= IUTF8;
        check(ioctl(fd, TCSETS, attributes.as_mut_ptr()))?;
    }
    resize_terminal(master, width, height)?;
    // SAFETY: each call reads or writes one int.
    unsafe {
        check(ioctl(fd, TIOCSPTLCK, &mut unlocked as *mut c_int))?;
        check(ioctl(fd, TIOCGPTN, &mut number as *mut c_uint))?;
    }
    Ok(number)
}

pub fn resize_terminal(master: &OwnedFd, width: u16, height: u16) -> io::Result<()> {
    let size = [height, width, 0, 0];
    // SAFETY: the call reads four shorts.
    check(unsafe { ioctl(master.as_raw_fd(), TIOCSWINSZ, size.as_ptr()) }).map(drop)
}

/// The group of processes in the foreground of a terminal.
pub fn foreground_of(master: &OwnedFd) -> io::Result<i32> {
    let mut group: c_int = 0;
    // SAFETY: the call writes one int.
    check(unsafe { ioctl(master.as_raw_fd(), TIOCGPGRP, &mut group as *mut c_int) })?;
    Ok(group)
}

// -- processes ------------------------------------------------------------------------------------------------------------

/// What a process used, as its parent is told.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub max_rss_bytes: u64,
}

impl Usage {
    fn of(used: &Rusage) -> Usage {
        let seconds = |time: Timeval| time.seconds as f64 + time.microseconds as f64 / 1e6;
        Usage { cpu_seconds: seconds(used.user) + seconds(used.system), max_rss_bytes: (used.max_rss_kib as u64) << 10 }
    }
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Exited(i32),
    Killed(i32),
    Stopped,
}

impl Status {
    fn of(raw: c_int) -> Status {
        match raw & 0x7f {
            0 => Status::Exited(raw >> 8 & 0xff),
            0x7f => Status::Stopped,
            signal => Status::Killed(signal),
        }
    }

    /// As a shell says it.
    pub fn code(self) -> i32 {
        match self {
            Status::Exited(code) => code,
            Status::Killed(signal) => 128 + signal,
            Status::Stopped => 128 + SIGSTOP,
        }
    }
}

/// A child that is dead, or stopped as a tracer is told; `None` where no child is.
///
/// # Errors
/// `ECHILD` where there are no children.
pub fn wait_any() -> io::Result<Option<(i32, Status, Usage)>> {
    let mut raw = 0;
    // SAFETY: all zeros is a value of this structure of integers.
    let mut used: Rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places are writable.
    let pid = check(unsafe { wait4(-1, &mut raw, WNOHANG, &mut used) })?;
    if pid == 0 {
        return Ok(None);
    }
    let seconds = |time: Timeval| time.seconds as f64 + time.microseconds as f64 / 1e6;
    let usage = Usage {
        cpu_seconds: seconds(used.user) + seconds(used.system),
        max_rss_bytes: (used.max_rss_kib as u64) << 10,
    };
    Ok(Some((pid, Status::of(raw), usage)))
}

/// Whether there is any child, dead ones that nobody has waited for included.
pub fn has_children() -> bool {
    let mut information = [0_u64; 16];
    // SAFETY: the structure has 128 bytes; nothing is taken.
    unsafe { waitid(0, 0, information.as_mut_ptr().cast(), WEXITED | WNOHANG | WNOWAIT | WALL) == 0 }
}

/// Whether a call has a child borrow the memory of its caller, who waits meanwhile.
pub fn lends_memory(call: i64, flags: u64) -> bool {
    const LENT: u64 = 0x4000 | 0x100; // CLONE_VFORK and CLONE_VM.
    arch::VFORK == Some(call) || (call == arch::CLONE && flags & LENT == LENT)
}

/// Signals a process; a negative number is a group, -1 everything but this process.
pub fn send_signal(pid: i32, number: i32) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { kill(pid, number) }).map(drop)
}

/// Enters a fresh namespace of host names, which tags what is started from now on.
pub fn enter_fresh_uts() -> io::Result<()> {
    // SAFETY: plain call; this process has one thread.
    check(unsafe { unshare(CLONE_NEWUTS as c_int) }).map(drop)
}

/// Overwrites the value of a variable that this process was started with, where the kernel shows it.
pub fn overwrite_variable(name: &[u8]) {
    // SAFETY: this process has one thread and has not changed its environment, so these are the texts that it was started with,
    // each of which ends with a zero; not more than is there is written.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            let text = *next;
            let length = CStr::from_ptr(text).to_bytes().len();
            let whole = std::slice::from_raw_parts(text.cast::<u8>(), length);
            if whole.starts_with(name) && whole.get(name.len()) == Some(&b'=') {
                for at in name.len() + 1..length {
                    ptr::write_volatile(text.add(at), b'0' as c_char);
                }
            }
            next = next.add(1);
        }
    }
}

/// Keeps what this process may from the programs that it starts.
pub fn keep_capabilities() {
    const CLEAR_ALL: c_ulong = 4;
    // SAFETY: plain call; it fails where there is no such set.
    unsafe { prctl(PR_CAP_AMBIENT, CLEAR_ALL, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) };
}

/// Ignores every signal that can be ignored, as the kernel does it for process 1. The death of children is told otherwise.
pub fn be_deaf() {
    const SIG_IGN: usize = 1;
    for number in (1..=LAST_SIGNAL).filter(|number| *number != SIGCHLD) {
        // SAFETY: plain call; it fails where a signal cannot be ignored.
        unsafe { signal(number, SIG_IGN) };
    }
}

fn limit_of(resource: c_int) -> u64 {
    let mut limit = Rlimit { soft: NO_LIMIT, hard: NO_LIMIT };
    // SAFETY: the structure is writable.
    unsafe { getrlimit(resource, &mut limit) };
    limit.soft
}

/// How many descriptors this process may have.
pub fn most_open_files() -> u64 {
    limit_of(RLIMIT_NOFILE)
}

/// How many processes its user may have.
pub fn most_processes() -> u64 {
    limit_of(RLIMIT_NPROC)
}

/// A descriptor that can be read when a child has died; the signal itself is blocked here, and reset in every child.
pub fn hear_of_children() -> io::Result<OwnedFd> {
    let mut set: SignalSet = [0; 16];
    set[0] = 1 << (SIGCHLD - 1);
    // SAFETY: the sets are as large as the library's.
    unsafe {
        check(sigprocmask(SIG_BLOCK, &set, ptr::null_mut()))?;
        owned(signalfd(-1, &set, O_NONBLOCK | O_CLOEXEC))
    }
}

/// Has keys like Ctrl-C mean nothing to this process; as process 1 a copy of it is safe from its inside only without handlers.
///
/// All others are as if nobody had set them, whoever started this process.
pub fn ignore_interrupts() {
    const SIG_IGN: usize = 1;
    for number in 1..=LAST_SIGNAL {
        // SAFETY: plain call; it fails where a signal cannot be set.
        unsafe { signal(number, if IGNORED.contains(&number) { SIG_IGN } else { SIG_DFL }) };
    }
}

/// Asks for turns of the processor that are short and come soon, for this process alone.
///
/// With hundreds of sessions inside, each of which may count as much as this process, a turn comes after half a second
/// otherwise. Kernels from 6.12 on put a short turn first; others refuse or ignore it.
pub fn take_short_turns() {
    const RESET_ON_FORK: u64 = 1;
    const TURN_NANOSECONDS: u64 = 100_000;
    let mut attributes = [0_u8; 48];
    attributes[0..4].copy_from_slice(&48_u32.to_ne_bytes());
    attributes[8..16].copy_from_slice(&RESET_ON_FORK.to_ne_bytes());
    attributes[24..32].copy_from_slice(&TURN_NANOSECONDS.to_ne_bytes());
    // SAFETY: the structure is as long as it says itself.
    unsafe { syscall(arch::SCHED_SETATTR, 0 as c_int, attributes.as_ptr(), 0 as c_uint) };
}

/// A program to start.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    pub path: &'a [u8],
    pub arguments: &'a [Vec<u8>],
    pub environment: &'a [Vec<u8>],
    /// What it has as 0, 1 and so on.
    pub descriptors: &'a [RawFd],
    /// Opened as 0 in the child, and given as 1 and 2 as well: a terminal, which becomes the session's own.
    pub terminal: Option<&'a [u8]>,
    /// How many descriptors it may have; `None`: as many as this process.
    pub open_files: Option<u64>,
    /// How far it gives way to others, from its first instruction on.
    pub nice: i32,
    /// The directory of a control group of version 2 that it is born in.
    pub group: Option<&'a OwnedFd>,
    /// A filter of system calls that it takes; none where it is empty.
    pub filter: &'a [u8],
    /// Lists of tasks of control groups of version 1, which it enters.
    pub tasks: &'a [OwnedFd],
    /// Nobody else is there who could stop the child before it is the program: it is waited for, and borrows this process's memory until
    /// then, which saves a tenth of a start.
    pub alone: bool,
    /// This process ignores every signal; a command ignores none.
    pub from_deaf: bool,
    /// Who it is, with which group and others; `None`: who this process is.
    pub user: Option<(u32, u32, &'a [u32])>,
    /// It stops before it is the program, until somebody has it go on.
    pub stopped: bool,
}

/// Starts a program in a session of its own, in the current directory.
///
/// # Returns
/// Its number, and a descriptor by which it tells that it could not become the program: the error's number in four bytes.
/// Nothing comes, and it closes, once it is the program.
///
/// # Errors
/// There can be no further process, or a string has a null byte.
pub fn start(program: &Program<'_>) -> io::Result<(i32, OwnedFd)> {
    let path = text(program.path)?;
    let arguments = program.arguments.iter().map(|one| text(one)).collect::<io::Result<Vec<_>>>()?;
    let environment = program.environment.iter().map(|one| text(one)).collect::<io::Result<Vec<_>>>()?;
    let terminal = program.terminal.map(text).transpose()?;
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|one| one.as_ptr()).chain(std::iter::once(ptr::null())).collect()
    };
    let (arguments, environment) = (pointers(&arguments), pointers(&environment)); // The texts live in the shadowed names.
    let (report, said) = make_pipe()?;
    let filter = words_of(program.filter);
    let birth = Birth {
        path: &path,
        arguments: &arguments,
        environment: &environment,
        program,
        filter: &filter,
        terminal: terminal.as_deref(),
        report: said.as_raw_fd(),
    };
    let argument: *const Birth<'_> = &birth;
    let pid = match program.group {
        None if program.alone => {
            const STACK_BYTES: usize = 32 << 10;
            const CLONE_VM: c_int = 0x100;
            const CLONE_VFORK: c_int = 0x4000;
            let mut stack = Room::new(STACK_BYTES)?;
            let top = stack.as_mut_ptr_range().end;
            // SAFETY: this process stands still until the child has left its memory, all of which lives until then; the stack is the child's
            // alone, and ends on a boundary of sixteen.
            check(unsafe { clone(be_born, top.cast(), CLONE_VM | CLONE_VFORK | SIGCHLD, argument as *mut c_void) })?
        }
        // SAFETY: one thread; the child makes plain calls on what was prepared, and ends by exec or `_exit`.
        None => check(unsafe { fork() })?,
        Some(group) => {
            // A process that is moved waits for every processor of the machine, so it begins where it belongs.
            let given: [u64; 11] =
                [CLONE_INTO_CGROUP, 0, 0, 0, SIGCHLD as u64, 0, 0, 0, 0, 0, group.as_raw_fd() as u64];
            // SAFETY: as above; the structure is as long as said.
            check(unsafe { syscall(SYS_CLONE3, given.as_ptr(), std::mem::size_of_val(&given)) } as c_int)?
        }
    };
    if pid == 0 {
        be_born(argument as *mut c_void);
    }
    never_block(&report)?;
    Ok((pid, report))
}

/// What a child needs to become its program.
struct Birth<'a> {
    path: &'a CStr,
    arguments: &'a [*const c_char],
    environment: &'a [*const c_char],
    program: &'a Program<'a>,
    filter: &'a [u64],
    terminal: Option<&'a CStr>,
    report: RawFd,
}

/// In the child. Never returns.
extern "C" fn be_born(argument: *mut c_void) -> c_int {
    // SAFETY: the child has it, and all that it points to, be it as a copy; it makes plain calls alone.
    unsafe {
        let birth = &*(argument as *const Birth<'_>);
        become_program(birth);
        let number = io::Error::last_os_error().raw_os_error().unwrap_or(EIO).to_ne_bytes();
        write(birth.report, number.as_ptr().cast(), number.len());
        _exit(127)
    }
}

/// In the child: returns where it could not become the program.
///
/// # Safety
/// After a fork; the lists end with null.
unsafe fn become_program(birth: &Birth<'_>) {
    let program = birth.program;
    setsid();
    for list in program.tasks {
        if write(list.as_raw_fd(), b"0".as_ptr().cast(), 1) < 0 {
            return;
        }
    }
    if !birth.filter.is_empty() && load_words(birth.filter) < 0 {
        return;
    }
    if let Some(most) = program.open_files {
        let hard = {
            let mut limit = Rlimit { soft: 0, hard: NO_LIMIT };
            getrlimit(RLIMIT_NOFILE, &mut limit);
            limit.hard
        };
        let limit = Rlimit { soft: most.min(hard), hard: most.min(hard) };
        if setrlimit(RLIMIT_NOFILE, &limit) < 0 {
            return;
        }
    }
    if program.from_deaf {
        for number in 1..=LAST_SIGNAL {
            signal(number, SIG_DFL);
        }
    }
    for number in IGNORED {
        signal(number, SIG_DFL);
    }
    let none: SignalSet = [0; 16];
    sigprocmask(SIG_SETMASK, &none, ptr::null_mut());
    if let Some(terminal) = birth.terminal {
        let fd = open(terminal.as_ptr(), O_RDWR);
        if fd < 0 || dup2(fd, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0 {
            return;
        }
        if fd > 2 {
            // It was opened without being closed at exec.
            fcntl(fd, 2, 1 as c_int);
        }
    }
    for (number, fd) in program.descriptors.iter().enumerate() {
        // None of them is among the numbers that are given: process 1 has 0, 1 and 2 open, and what it opens comes after.
        if dup2(*fd, number as c_int) < 0 {
            return;
        }
    }
    if program.nice != 0 {
        setpriority(0, 0, program.nice); // Who may not has the niceness of this process.
    }
    if let Some((uid, gid, groups)) = program.user {
        if setgroups(groups.len(), groups.as_ptr()) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0
        {
            return;
        }
    }
    if program.stopped {
        kill(getpid(), SIGSTOP);
    }
    execve(birth.path.as_ptr(), birth.arguments.as_ptr(), birth.environment.as_ptr());
}

// -- namespaces and mounts ------------------------------------------------------------------------------------------------

/// A copy of this process in new namespaces, born in a control group if one is given.
///
/// # Returns
/// Its number and a descriptor of it; nothing in the copy.
pub fn clone_into(namespaces: u64, group: Option<&OwnedFd>) -> io::Result<Option<(i32, OwnedFd)>> {
    let mut pidfd: c_int = -1;
    let place = &mut pidfd as *mut c_int;
    let pid = match group {
        None => {
            let flags = namespaces | CLONE_PIDFD | SIGCHLD as u64;
            // SAFETY: as fork; the kernel writes the descriptor before it returns here.
            unsafe { syscall(arch::CLONE, flags, 0_usize, place, 0_usize, 0_usize) }
        }
        Some(group) => {
            let flags = namespaces | CLONE_PIDFD | CLONE_INTO_CGROUP;
            let given: [u64; 11] = [flags, place as u64, 0, 0, SIGCHLD as u64, 0, 0, 0, 0, 0, group.as_raw_fd() as u64];
            // SAFETY: as above; the structure is as long as said.
            unsafe { syscall(SYS_CLONE3, given.as_ptr(), std::mem::size_of_val(&given)) }
        }
    };
    match check(pid as c_int)? {
        0 => Ok(None),
        pid => Ok(Some((pid, owned(pidfd)?))),
    }
}

/// Leaves namespaces for new ones.
pub fn leave_for_new(namespaces: u64) -> io::Result<()> {
    // SAFETY: plain call; this process has one thread.
    check(unsafe { unshare(namespaces as c_int) }).map(drop)
}

/// Enters a namespace of a kind.
pub fn enter_namespace(fd: &OwnedFd, kind: u64) -> io::Result<()> {
    // SAFETY: plain call; this process has one thread.
    check(unsafe { setns(fd.as_raw_fd(), kind as c_int) }).map(drop)
}

/// A plain copy of this process; 0 in the copy.
pub fn copy_process() -> io::Result<i32> {
    // SAFETY: one thread.
    check(unsafe { fork() })
}

/// A child that is dead, or stopped as a tracer is told.
pub fn wait_blocking() -> io::Result<(i32, Status, Usage)> {
    loop {
        let mut raw = 0;
        // SAFETY: all zeros is a value of this structure of integers.
        let mut used: Rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both places are writable.
        match check(unsafe { wait4(-1, &mut raw, 0, &mut used) }) {
            Err(error) if number_of(&error) == EINTR => {}
            Err(error) => return Err(error),
            Ok(pid) => return Ok((pid, Status::of(raw), Usage::of(&used))),
        }
    }
}

/// Leads a session of its own.
pub fn lead_session() {
    // SAFETY: plain call; it fails where it leads one.
    unsafe { setsid() };
}

/// Is killed when its parent ends.
pub fn die_with_parent() -> io::Result<()> {
    const PR_SET_PDEATHSIG: c_int = 1;
    control(PR_SET_PDEATHSIG, SIGKILL as u64)
}

/// Closes every descriptor from one number on but one. Nobody may use any of them afterwards, nor let go of what had them.
pub fn close_from_but(first: RawFd, kept: RawFd) {
    // SAFETY: plain calls.
    unsafe {
        if kept > first {
            syscall(SYS_CLOSE_RANGE, first as c_uint, (kept - 1) as c_uint, 0 as c_uint);
        }
        syscall(SYS_CLOSE_RANGE, (kept + 1) as c_uint, u32::MAX, 0 as c_uint);
    }
}

/// Closes a descriptor that whoever owns it never lets go of: this process ends without.
pub fn close_number(fd: RawFd) {
    // SAFETY: plain call.
    unsafe { syscall(SYS_CLOSE_RANGE, fd as c_uint, fd as c_uint, 0 as c_uint) };
}

/// What a helper does, with what it needs.
struct Helper<'a> {
    work: &'a mut (dyn FnMut() -> i32 + 'a),
}

extern "C" fn help(argument: *mut c_void) -> c_int {
    // SAFETY: it is the structure that `with_helper` keeps until this process has ended.
    let helper = unsafe { &mut *argument.cast::<Helper<'_>>() };
    (helper.work)()
}

/// Does something while another process, which shares this one's memory and descriptors, does its part.
///
/// To copy this process for that would take twice as long. Neither may touch what the other writes to.
///
/// # Returns
/// What `meanwhile` gives, and the code that the helper ended with.
pub fn with_helper<T>(work: &mut dyn FnMut() -> i32, meanwhile: impl FnOnce() -> T) -> io::Result<(T, i32)> {
    const STACK_BYTES: usize = 32 << 10;
    const CLONE_VM: c_int = 0x100;
    const CLONE_FILES: c_int = 0x400;
    const WCLONE: c_int = i32::MIN;
    let mut stack = Room::new(STACK_BYTES)?;
    let mut helper = Helper { work };
    let top = stack.as_mut_ptr_range().end;
    let argument: *mut Helper<'_> = &mut helper;
    // SAFETY: the stack is the helper's alone and ends on a boundary of sixteen; both it and the argument live until the helper has ended.
    let pid = check(unsafe { clone(help, top.cast(), CLONE_VM | CLONE_FILES, argument.cast()) })?;
    let result = meanwhile();
    let mut raw = 0;
    loop {
        // SAFETY: the status is writable.
        match check(unsafe { waitpid(pid, &mut raw, WCLONE) }) {
            Err(error) if number_of(&error) == EINTR => {}
            waited => return waited.map(|_| (result, Status::of(raw).code())),
        }
    }
}

fn or_null(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// Mounts, binds or remounts.
pub fn mount_on(
    source: Option<&[u8]>,
    target: &[u8],
    kind: Option<&[u8]>,
    flags: u64,
    options: Option<&[u8]>,
) -> io::Result<()> {
    let target = text(target)?;
    let (source, kind, options) =
        (source.map(text).transpose()?, kind.map(text).transpose()?, options.map(text).transpose()?);
    // SAFETY: all strings end, or are null.
    check(unsafe { mount(or_null(&source), target.as_ptr(), or_null(&kind), flags as c_ulong, or_null(&options)) })
        .map(drop)
}

/// Takes a mount away as soon as nobody uses it.
pub fn unmount(target: &[u8]) -> io::Result<()> {
    let target = text(target)?;
    // SAFETY: the path ends.
    check(unsafe { umount2(target.as_ptr(), MNT_DETACH) }).map(drop)
}

pub fn change_root(path: &[u8]) -> io::Result<()> {
    let path = text(path)?;
    // SAFETY: the path ends.
    check(unsafe { chroot(path.as_ptr()) }).map(drop)
}

pub fn pivot_root(new: &[u8], old: &[u8]) -> io::Result<()> {
    let (new, old) = (text(new)?, text(old)?);
    // SAFETY: both paths end.
    check(unsafe { syscall(arch::PIVOT_ROOT, new.as_ptr(), old.as_ptr()) } as c_int).map(drop)
}

/// A detached copy of a mount, with what is mounted below it or without; an empty path is the directory itself.
pub fn copy_mount(directory: RawFd, path: &[u8], recursive: bool) -> io::Result<OwnedFd> {
    let empty = if path.is_empty() { AT_EMPTY_PATH as c_uint } else { 0 };
    let flags = OPEN_TREE_CLONE | O_CLOEXEC as c_uint | empty | if recursive { AT_RECURSIVE } else { 0 };
    let path = text(path)?;
    // SAFETY: the path ends.
    owned(unsafe { syscall(SYS_OPEN_TREE, directory, path.as_ptr(), flags) } as c_int)
}

/// What is set of a mount.
#[derive(Clone, Copy, Default)]
pub struct MountChange<'a> {
    /// Attributes that are added.
    pub attributes: u64,
    pub recursive: bool,
    /// No later mount elsewhere comes to it.
    pub private: bool,
    /// By whose ids its files are seen.
    pub user_namespace: Option<&'a OwnedFd>,
}

pub fn change_mount(fd: &OwnedFd, change: MountChange<'_>) -> io::Result<()> {
    let namespace = change.user_namespace.map_or(0, |fd| fd.as_raw_fd() as u64);
    let set = [change.attributes, 0, if change.private { MS_PRIVATE } else { 0 }, namespace];
    let flags = AT_EMPTY_PATH as c_uint | if change.recursive { AT_RECURSIVE } else { 0 };
    let path = text(b"")?;
    // SAFETY: the path ends, and the structure is as long as said.
    let result = unsafe {
        syscall(SYS_MOUNT_SETATTR, fd.as_raw_fd(), path.as_ptr(), flags, set.as_ptr(), std::mem::size_of_val(&set))
    };
    check(result as c_int).map(drop)
}

/// Attaches a detached mount.
pub fn attach_mount(fd: &OwnedFd, target: &[u8]) -> io::Result<()> {
    let (none, target) = (text(b"")?, text(target)?);
    // SAFETY: both paths end.
    let result = unsafe {
        syscall(SYS_MOVE_MOUNT, fd.as_raw_fd(), none.as_ptr(), AT_FDCWD, target.as_ptr(), MOVE_MOUNT_F_EMPTY_PATH)
    };
    check(result as c_int).map(drop)
}

pub fn enter_directory(path: &[u8]) -> io::Result<()> {
    let path = text(path)?;
    // SAFETY: the path ends.
    check(unsafe { chdir(path.as_ptr()) }).map(drop)
}

// -- powers ---------------------------------------------------------------------------------------------------------------

pub fn effective_user() -> u32 {
    // SAFETY: plain call.
    unsafe { geteuid() }
}

pub fn effective_group() -> u32 {
    // SAFETY: plain call.
    unsafe { getegid() }
}

/// Has these ids and no others.
pub fn be(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain calls.
    unsafe {
        check(setresgid(gid, gid, gid))?;
        check(setresuid(uid, uid, uid)).map(drop)
    }
}

/// Leaves all other groups.
pub fn leave_groups() -> io::Result<()> {
    // SAFETY: an empty list.
    check(unsafe { setgroups(0, ptr::null()) }).map(drop)
}

pub fn own(directory: RawFd, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends.
    check(unsafe { fchownat(directory, name.as_ptr(), uid.unwrap_or(u32::MAX), gid.unwrap_or(u32::MAX), 0) }).map(drop)
}

/// Gives what is open to a user and a group.
pub fn own_open(fd: &OwnedFd, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { fchown(fd.as_raw_fd(), uid, gid) }).map(drop)
}

/// The same of a name in a directory; a link is not followed.
pub fn own_name(directory: RawFd, name: &[u8], uid: u32, gid: u32) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends.
    check(unsafe { fchownat(directory, name.as_ptr(), uid, gid, AT_SYMLINK_NOFOLLOW) }).map(drop)
}

pub fn set_mode_at(path: &[u8], mode: u32) -> io::Result<()> {
    let path = text(path)?;
    // SAFETY: the path ends.
    check(unsafe { chmod(path.as_ptr(), mode) }).map(drop)
}

/// Locks a file for as long as it is open somewhere.
pub fn lock(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { flock(fd.as_raw_fd(), LOCK_EXCLUSIVE_NOW) }).map(drop)
}

/// An attribute of this process.
pub fn control(option: i32, value: u64) -> io::Result<()> {
    // SAFETY: options of numbers alone.
    check(unsafe { prctl(option, value as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) }).map(drop)
}

/// Names this process; 15 bytes of it.
pub fn set_name(name: &[u8]) -> io::Result<()> {
    let name = text(name)?;
    // SAFETY: the name ends.
    check(unsafe { prctl(PR_SET_NAME, name.as_ptr(), 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) }).map(drop)
}

/// Writes over the command line that others see of this process, as far as it is long.
pub fn set_title(title: &[u8]) {
    const FIRST: usize = 45; // Fields behind the name: where the arguments begin, and where they end.
    let text = std::fs::read("/proc/self/stat").unwrap_or_default();
    let behind = text.iter().rposition(|byte| *byte == b')').map_or(0, |at| at + 1);
    let fields: Vec<usize> = text[behind..]
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(|word| std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).unwrap_or(0))
        .collect();
    if let (Some(begin), Some(end)) = (fields.get(FIRST), fields.get(FIRST + 1)) {
        if *begin > 0 && *end > *begin {
            let length = end - begin;
            let shown = &title[..title.len().min(length - 1)];
            // SAFETY: the kernel laid the arguments out there, in this process's own stack, and nothing reads them any more.
            unsafe {
                ptr::write_bytes(*begin as *mut u8, 0, length);
                ptr::copy_nonoverlapping(shown.as_ptr(), *begin as *mut u8, shown.len());
            }
        }
    }
}

/// Takes all other capabilities out of what this process, and whoever it starts, may ever have.
pub fn bound_capabilities(kept: &[u64]) -> io::Result<()> {
    for number in (0..64).filter(|number| !kept.contains(number)) {
        if let Err(error) = control(PR_CAPBSET_DROP, number) {
            // The kernel has no more.
            return if number_of(&error) == EINVAL { Ok(()) } else { Err(error) };
        }
    }
    Ok(())
}

/// Has these capabilities, by bits, and no others.
pub fn set_capabilities(bits: u64) -> io::Result<()> {
    let head = [CAPABILITY_VERSION_3, 0];
    let (low, high) = (bits as u32, (bits >> 32) as u32);
    let data = [low, low, 0, high, high, 0];
    // SAFETY: two structures of this version, and six words.
    check(unsafe { capset(head.as_ptr(), data.as_ptr()) }).map(drop)
}

pub fn set_umask(mask: u32) {
    // SAFETY: plain call.
    unsafe { umask(mask) };
}

pub fn name_host(name: &[u8]) -> io::Result<()> {
    // SAFETY: it is as long as said.
    check(unsafe { sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Has at most so much of a resource, for good, and no more than it has already.
pub fn limit_resource(resource: i32, value: u64) -> io::Result<()> {
    let mut limit = Rlimit { soft: 0, hard: 0 };
    // SAFETY: the structure is writable, then read.
    unsafe {
        check(getrlimit(resource, &mut limit))?;
        let bounded = value.min(limit.hard);
        check(setrlimit(resource, &Rlimit { soft: bounded, hard: bounded })).map(drop)
    }
}

/// Runs on these processors alone.
pub fn run_on(processors: &[u64]) -> io::Result<()> {
    let mut set = [0_u64; 16];
    for number in processors {
        if let Some(word) = set.get_mut(*number as usize / 64) {
            *word |= 1 << (number % 64);
        }
    }
    // SAFETY: it is as long as said.
    check(unsafe { sched_setaffinity(0, std::mem::size_of_val(&set), set.as_ptr()) }).map(drop)
}

/// The instructions of a filter, aligned as the kernel reads them.
fn words_of(program: &[u8]) -> Vec<u64> {
    program
        .chunks_exact(8)
        .map(|bytes| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        })
        .collect()
}

fn load_words(instructions: &[u64]) -> c_long {
    #[repr(C)]
    struct Filter {
        length: u16,
        instructions: *const c_void,
    }
    let filter = Filter { length: instructions.len() as u16, instructions: instructions.as_ptr().cast() };
    // Without the flag older kernels slow everything inside down, to protect it from others, of which it has none.
    // SAFETY: the kernel copies the instructions, each of eight bytes, during the call.
    unsafe { syscall(arch::SECCOMP, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &filter as *const Filter) }
}

/// Has a filter of system calls, for good.
pub fn load_filter(program: &[u8]) -> io::Result<()> {
    check(load_words(&words_of(program)) as c_int).map(drop)
}

/// Asks whether the kernel takes filters of system calls at all: one that does misses the filter that is not given.
pub fn take_filters() -> io::Result<()> {
    // SAFETY: the kernel refuses the address.
    let result = unsafe { syscall(arch::SECCOMP, SECCOMP_SET_MODE_FILTER, 0_usize, ptr::null::<c_void>()) };
    match check(result as c_int) {
        Err(error) if number_of(&error) != EFAULT => Err(error),
        _ => Ok(()),
    }
}

/// Has a filter of system calls, for good, and a descriptor by which is answered what it asks about.
pub fn load_asking_filter(program: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Filter {
        length: u16,
        instructions: *const c_void,
    }
    const NEW_LISTENER: c_uint = 8;
    const WAIT_KILLABLE: c_uint = 32;
    let words = words_of(program);
    let filter = Filter { length: words.len() as u16, instructions: words.as_ptr().cast() };
    let load = |flags: c_uint| {
        let flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW | NEW_LISTENER | flags;
        // SAFETY: the kernel copies the instructions during the call.
        owned(unsafe { syscall(arch::SECCOMP, SECCOMP_SET_MODE_FILTER, flags, &filter as *const Filter) } as c_int)
    };
    // From Linux 5.19 on, no signal interrupts a call that is being answered.
    match load(WAIT_KILLABLE) {
        Err(error) if number_of(&error) == EINVAL => load(0),
        loaded => loaded,
    }
}

/// A call that the kernel asks about.
pub struct Question {
    pub id: u64,
    pub caller: i32,
    pub call: i32,
    /// The first two.
    pub arguments: [u64; 2],
}

pub fn hear_question(fd: &OwnedFd) -> io::Result<Question> {
    const RECEIVE: c_ulong = 0xC050_2100;
    let mut said = [0_u64; 10];
    // SAFETY: the structure has 80 bytes: an id, a thread and flags, a call and an architecture, where it was made, its arguments.
    check(unsafe { ioctl(fd.as_raw_fd(), RECEIVE, said.as_mut_ptr()) })?;
    Ok(Question {
        id: said[0],
        caller: said[1] as u32 as i32,
        call: said[2] as u32 as i32,
        arguments: [said[4], said[5]],
    })
}

/// Lets a call go on, or has it fail with an error.
pub fn answer_question(fd: &OwnedFd, id: u64, error: i32) -> io::Result<()> {
    const SEND: c_ulong = 0xC018_2101;
    const GO_ON: u64 = 1;
    let flags = if error == 0 { GO_ON } else { 0 };
    let said = [id, 0, u64::from((-error) as u32) | flags << 32];
    // SAFETY: the structure has 24 bytes: an id, a value, an error and flags.
    check(unsafe { ioctl(fd.as_raw_fd(), SEND, said.as_ptr()) }).map(drop)
}

// -- Landlock -------------------------------------------------------------------------------------------------------------

const SYS_LANDLOCK_CREATE_RULESET: c_long = 444;
const SYS_LANDLOCK_ADD_RULE: c_long = 445;
const SYS_LANDLOCK_RESTRICT_SELF: c_long = 446;

/// A ruleset that refuses all of these; rules make exceptions. Words that are zero at the end older kernels need not know.
pub fn make_ruleset(handled: &[u64]) -> io::Result<OwnedFd> {
    // SAFETY: the structure is as long as said.
    owned(unsafe {
        syscall(SYS_LANDLOCK_CREATE_RULESET, handled.as_ptr(), std::mem::size_of_val(handled), 0 as c_uint) as c_int
    })
}

/// Makes an exception for what is open and all below it.
pub fn allow_below(ruleset: &OwnedFd, fd: &OwnedFd, rights: u64) -> io::Result<()> {
    const PATH_BENEATH: c_int = 1;
    let mut rule = [0_u8; 12];
    rule[..8].copy_from_slice(&rights.to_ne_bytes());
    rule[8..].copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
    // SAFETY: the structure has 12 bytes.
    let result =
        unsafe { syscall(SYS_LANDLOCK_ADD_RULE, ruleset.as_raw_fd(), PATH_BENEATH, rule.as_ptr(), 0 as c_uint) };
    check(result as c_int).map(drop)
}

/// Is bound by a ruleset, for good, with all descendants.
pub fn restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset.as_raw_fd(), 0 as c_uint) } as c_int).map(drop)
}

/// Has a new session keyring that nobody may use; where keyrings are not to be had, nobody inside has them either.
pub fn leave_session_keyring() -> io::Result<()> {
    const JOIN: c_int = 1;
    const SET_PERMISSIONS: c_int = 5;
    const OF_THE_SESSION: c_int = -3;
    // SAFETY: plain calls.
    unsafe {
        if syscall(arch::KEYCTL, JOIN, 0_usize) < 0 {
            let error = io::Error::last_os_error();
            return match number_of(&error) {
                ENOSYS | EPERM | EACCES => Ok(()),
                _ => Err(error),
            };
        }
        check(syscall(arch::KEYCTL, SET_PERMISSIONS, OF_THE_SESSION, 0 as c_long) as c_int).map(drop)
    }
}

// -- sockets --------------------------------------------------------------------------------------------------------------

/// A Unix socket with a name in the current directory: of streams, or of messages.
pub fn bind_here(name: &[u8], of_messages: bool) -> io::Result<OwnedFd> {
    let kind = if of_messages { SOCK_SEQPACKET } else { SOCK_STREAM };
    // SAFETY: plain call.
    let fd = owned(unsafe { socket(AF_UNIX, kind | O_CLOEXEC, 0) })?;
    let mut address = [0_u8; 110];
    address[..2].copy_from_slice(&(AF_UNIX as u16).to_ne_bytes());
    let room = address.get_mut(2..2 + name.len()).ok_or_else(|| io::Error::from_raw_os_error(EINVAL))?;
    room.copy_from_slice(name);
    // SAFETY: the address is as long as said, with the byte that ends its path.
    check(unsafe { bind(fd.as_raw_fd(), address.as_ptr().cast(), 3 + name.len() as c_uint) })?;
    Ok(fd)
}

/// Two sockets that take messages from each other.
pub fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    const SO_SNDBUF: c_int = 7;
    const LARGEST: c_int = 1 << 20;
    let mut fds = [0; 2];
    // SAFETY: there is room for two numbers.
    check(unsafe { socketpair(AF_UNIX, SOCK_SEQPACKET | O_CLOEXEC, 0, fds.as_mut_ptr()) })?;
    for fd in fds {
        // SAFETY: the value is an int.
        check(unsafe { setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &LARGEST, 4) })?;
    }
    Ok((owned(fds[0])?, owned(fds[1])?))
}

/// Has the kernel find out within half a minute that the other side of a connection is gone without a word.
pub fn keep_alive(fd: &OwnedFd) -> io::Result<()> {
    const OF_TCP: c_int = 6;
    // SO_KEEPALIVE; TCP_KEEPIDLE and TCP_KEEPINTVL in seconds, TCP_KEEPCNT.
    for (level, name, value) in [(SOL_SOCKET, 9, 1), (OF_TCP, 4, 10), (OF_TCP, 5, 5), (OF_TCP, 6, 4)] {
        let value: c_int = value;
        // SAFETY: the value is an int.
        check(unsafe { setsockopt(fd.as_raw_fd(), level, name, &value, 4) })?;
    }
    Ok(())
}

/// Has the coming close break a connection off, so that its other side does not take it for an end.
pub fn break_off_at_close(socket: &impl AsRawFd) -> io::Result<()> {
    const SO_LINGER: c_int = 13;
    let at_once: [c_int; 2] = [1, 0];
    // SAFETY: the value is two ints, as long as said.
    check(unsafe { setsockopt(socket.as_raw_fd(), SOL_SOCKET, SO_LINGER, at_once.as_ptr(), 8) })?;
    Ok(())
}

/// What tells of the sockets of this network namespace; where there is no such thing, a descriptor that tells nothing.
pub fn open_diagnosis() -> io::Result<OwnedFd> {
    // SAFETY: plain call.
    owned(unsafe { socket(AF_NETLINK, SOCK_RAW | O_CLOEXEC, NETLINK_SOCK_DIAG) })
        .or_else(|_| open_at(AT_FDCWD, b"/dev/null", O_RDONLY, 0))
}

/// Has `lo` up.
pub fn raise_loopback() -> io::Result<()> {
    // SAFETY: plain call.
    let fd = owned(unsafe { socket(AF_INET, SOCK_DGRAM | O_CLOEXEC, 0) })?;
    let mut request = [0_u8; 40];
    request[..2].copy_from_slice(b"lo");
    // SAFETY: the structure has 40 bytes: 16 of a name, then the flags.
    check(unsafe { ioctl(fd.as_raw_fd(), SIOCGIFFLAGS, request.as_mut_ptr()) })?;
    let flags = u16::from_ne_bytes([request[16], request[17]]);
    if flags & IFF_UP == 0 {
        request[16..18].copy_from_slice(&(flags | IFF_UP).to_ne_bytes());
        // SAFETY: as above.
        check(unsafe { ioctl(fd.as_raw_fd(), SIOCSIFFLAGS, request.as_mut_ptr()) })?;
    }
    Ok(())
}

/// The address of a port of this network namespace's own, and its length.
fn loopback(port: u16, by_version_6: bool) -> ([u8; 28], c_uint) {
    let mut address = [0_u8; 28];
    let family = if by_version_6 { AF_INET6 } else { AF_INET };
    address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    if by_version_6 {
        address[23] = 1;
        return (address, 28);
    }
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    (address, 16)
}

/// A socket that listens at 127.0.0.1.
pub fn listen_on_loopback(port: u16, backlog: i32) -> io::Result<OwnedFd> {
    let (address, length) = loopback(port, false);
    // SAFETY: the address is as long as said.
    unsafe {
        let fd = owned(socket(AF_INET, SOCK_STREAM | O_CLOEXEC | O_NONBLOCK, 0))?;
        check(bind(fd.as_raw_fd(), address.as_ptr().cast(), length))?;
        check(listen(fd.as_raw_fd(), backlog))?;
        Ok(fd)
    }
}

/// A socket on its way to a port of this network namespace's own; it can be written to once that has come about or failed.
pub fn connect_to_loopback(port: u16, by_version_6: bool) -> io::Result<OwnedFd> {
    const EINPROGRESS: i32 = 115;
    let (address, length) = loopback(port, by_version_6);
    let family = if by_version_6 { AF_INET6 } else { AF_INET };
    // SAFETY: plain call.
    let fd = owned(unsafe { socket(family, SOCK_STREAM | O_CLOEXEC | O_NONBLOCK, 0) })?;
    // SAFETY: the address is as long as said.
    match check(unsafe { connect(fd.as_raw_fd(), address.as_ptr().cast(), length) }) {
        Err(error) if number_of(&error) != EINPROGRESS => Err(error),
        _ => Ok(fd),
    }
}

/// Why a connection did not come about; 0: it did.
pub fn socket_error(fd: &OwnedFd) -> i32 {
    const SO_ERROR: c_int = 4;
    let (mut error, mut length): (c_int, c_uint) = (0, 4);
    // SAFETY: there is room for one int.
    let result = unsafe { getsockopt(fd.as_raw_fd(), SOL_SOCKET, SO_ERROR, &mut error, &mut length) };
    if result < 0 {
        EIO
    } else {
        error
    }
}

/// Whether a connection is one with itself.
pub fn has_met_itself(fd: &OwnedFd) -> bool {
    let (mut own, mut other) = ([0_u8; 28], [0_u8; 28]);
    let (mut own_length, mut other_length): (c_uint, c_uint) = (28, 28);
    // SAFETY: the addresses are as long as said.
    let failed = unsafe {
        getsockname(fd.as_raw_fd(), own.as_mut_ptr().cast(), &mut own_length) < 0
            || getpeername(fd.as_raw_fd(), other.as_mut_ptr().cast(), &mut other_length) < 0
    };
    failed || own == other
}

/// A message and the descriptors that came with it; 0 bytes at the end.
pub fn receive_message(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut piece = IoVec { base: buffer.as_mut_ptr() as *const c_void, length: buffer.len() };
    let mut control: ControlRoom = [0; 2 + MOST_DESCRIPTORS / 2];
    let mut head = MessageHead {
        name: ptr::null_mut(),
        name_length: 0,
        pieces: &mut piece,
        piece_count: 1,
        control: control.as_mut_ptr().cast(),
        control_length: std::mem::size_of_val(&control),
        flags: 0,
    };
    let count = loop {
        // SAFETY: buffer and control room are as long as said.
        match check_size(unsafe { recvmsg(fd.as_raw_fd(), &mut head, MSG_CMSG_CLOEXEC) }) {
            Err(error) if number_of(&error) == EINTR => {}
            result => break result?,
        }
    };
    let mut descriptors = Vec::new();
    let rights = u64::from(SCM_RIGHTS as u32) << 32 | u64::from(SOL_SOCKET as u32);
    if head.control_length >= 16 && control[1] == rights {
        for at in 0..(control[0] as usize).saturating_sub(16) / 4 {
            let number = (control[2 + at / 2] >> (32 * (at % 2))) as u32 as RawFd;
            descriptors.push(owned(number)?);
        }
    }
    Ok((count, descriptors))
}

/// Sends a message with descriptors, none of which is given away.
pub fn send_message(fd: &OwnedFd, data: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let mut piece = IoVec { base: data.as_ptr().cast(), length: data.len() };
    let mut control: ControlRoom = [0; 2 + MOST_DESCRIPTORS / 2];
    if descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::Error::from_raw_os_error(EINVAL));
    }
    control[0] = 16 + 4 * descriptors.len() as u64;
    control[1] = u64::from(SCM_RIGHTS as u32) << 32 | u64::from(SOL_SOCKET as u32);
    for (at, number) in descriptors.iter().enumerate() {
        control[2 + at / 2] |= u64::from(*number as u32) << (32 * (at % 2));
    }
    let control_length = if descriptors.is_empty() { 0 } else { (control[0] as usize + 7) & !7 };
    let head = MessageHead {
        name: ptr::null_mut(),
        name_length: 0,
        pieces: &mut piece,
        piece_count: 1,
        control: control.as_mut_ptr().cast(),
        control_length,
        flags: 0,
    };
    loop {
        // SAFETY: data and control room are as long as said.
        match check_size(unsafe { sendmsg(fd.as_raw_fd(), &head, MSG_NOSIGNAL) }) {
            Err(error) if number_of(&error) == EINTR => {}
            result => return result.map(drop),
        }
    }
}

/// Copies a part of a file to the end of another; how much of it.
pub fn copy_between(from: &OwnedFd, offset: u64, to: &OwnedFd, count: u64) -> io::Result<usize> {
    let mut offset = offset as i64;
    // SAFETY: the offset is writable.
    check_size(unsafe { sendfile(to.as_raw_fd(), from.as_raw_fd(), &mut offset, count.min(1 << 30) as usize) })
}

/// Whether there is something to read within so many milliseconds.
pub fn wait_readable(fds: &[&OwnedFd], milliseconds: i32) -> Vec<bool> {
    const POLLIN: i16 = 1;
    let mut asked: Vec<PollFd> =
        fds.iter().map(|fd| PollFd { fd: fd.as_raw_fd(), events: POLLIN, returned: 0 }).collect();
    // SAFETY: as many as said.
    unsafe { poll(asked.as_mut_ptr(), asked.len() as c_ulong, milliseconds) };
    asked.iter().map(|one| one.returned != 0).collect()
}

/// Brings descriptors to these places, from the first on, and closes all others from there on.
///
/// Whoever had them before must not let go of them: their numbers mean others now.
pub fn arrange(descriptors: &[RawFd], first: RawFd) -> io::Result<Vec<OwnedFd>> {
    const HIGH: c_int = 64;
    let mut high = Vec::new();
    for fd in descriptors {
        // SAFETY: plain call.
        high.push(check(unsafe { fcntl(*fd, F_DUPFD_CLOEXEC, HIGH) })?);
    }
    let mut placed = Vec::new();
    for (at, fd) in high.iter().enumerate() {
        let target = first + at as RawFd;
        // SAFETY: plain calls; 2 is F_SETFD, 1 is FD_CLOEXEC.
        unsafe {
            check(dup2(*fd, target))?;
            check(fcntl(target, 2, 1 as c_int))?;
        }
        placed.push(owned(target)?);
    }
    // SAFETY: plain call.
    check(
        unsafe { syscall(SYS_CLOSE_RANGE, (first + placed.len() as RawFd) as c_uint, u32::MAX, 0 as c_uint) } as c_int
    )?;
    Ok(placed)
}

/// How much memory is taken, in a build for tests.
#[cfg(any(test, feature = "fuzz"))]
pub mod counted {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NOW: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);

    struct Counted;

    #[global_allocator]
    static MEMORY: Counted = Counted;

    fn took(size: usize) {
        let now = NOW.fetch_add(size, Ordering::Relaxed) + size;
        MOST.fetch_max(now, Ordering::Relaxed);
    }

    // SAFETY: all is left to the system's; only sizes are added up.
    unsafe impl GlobalAlloc for Counted {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            took(layout.size());
            System.alloc(layout)
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            took(layout.size());
            System.alloc_zeroed(layout)
        }

        unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            took(size);
            NOW.fetch_sub(layout.size(), Ordering::Relaxed);
            System.realloc(at, layout, size)
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            NOW.fetch_sub(layout.size(), Ordering::Relaxed);
            System.dealloc(at, layout);
        }
    }

    /// The most that was taken at a time while something ran, beside what had been before.
    pub fn most_during(run: impl FnOnce()) -> usize {
        let before = NOW.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        run();
        MOST.load(Ordering::Relaxed).saturating_sub(before)
    }
}
