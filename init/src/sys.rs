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
}
#[cfg(target_arch = "aarch64")]
mod arch {
    pub const O_DIRECTORY: i32 = 0o40_000;
    pub const O_NOFOLLOW: i32 = 0o100_000;
    pub const SCHED_SETATTR: i64 = 274;
}
pub use arch::{O_DIRECTORY, O_NOFOLLOW};

pub const O_RDONLY: i32 = 0;
pub const O_WRONLY: i32 = 1;
pub const O_RDWR: i32 = 2;
pub const O_CREAT: i32 = 0o100;
pub const O_EXCL: i32 = 0o200;
pub const O_NOCTTY: i32 = 0o400;
pub const O_NONBLOCK: i32 = 0o4000;
pub const O_PATH: i32 = 0o10_000_000;
const O_CLOEXEC: i32 = 0o2_000_000;

pub const ENOENT: i32 = 2;
pub const ESRCH: i32 = 3;
pub const EINTR: i32 = 4;
pub const EIO: i32 = 5;
pub const ENXIO: i32 = 6;
pub const EAGAIN: i32 = 11;
pub const ENOMEM: i32 = 12;
pub const EACCES: i32 = 13;
pub const EPERM: i32 = 1;
pub const EEXIST: i32 = 17;
pub const ENODEV: i32 = 19;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const ENFILE: i32 = 23;
pub const EMFILE: i32 = 24;
pub const EFBIG: i32 = 27;
pub const ENOSPC: i32 = 28;
pub const EROFS: i32 = 30;
pub const ENOSYS: i32 = 38;
pub const ENOTEMPTY: i32 = 39;
pub const ELOOP: i32 = 40;
pub const ENOBUFS: i32 = 105;
pub const ETIMEDOUT: i32 = 110;
pub const EDQUOT: i32 = 122;

pub const SIGHUP: i32 = 1;
pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGSTOP: i32 = 19;
const LAST_SIGNAL: i32 = 64;

pub const S_IFMT: u32 = 0o170_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFLNK: u32 = 0o120_000;

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

const CLONE_NEWUTS: c_int = 0x0400_0000;
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

type SignalSet = [u64; 16];

extern "C" {
    fn accept4(fd: c_int, address: *mut c_void, length: *mut c_uint, flags: c_int) -> c_int;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn chdir(path: *const c_char) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut EpollEvent) -> c_int;
    fn epoll_wait(epoll: c_int, events: *mut EpollEvent, most: c_int, milliseconds: c_int) -> c_int;
    fn execve(path: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn fchdir(fd: c_int) -> c_int;
    fn fchmod(fd: c_int, mode: c_uint) -> c_int;
    fn chmod(path: *const c_char, mode: c_uint) -> c_int;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn fork() -> c_int;
    fn fstatfs(fd: c_int, found: *mut c_void) -> c_int;
    fn ftruncate(fd: c_int, size: i64) -> c_int;
    fn futimens(fd: c_int, times: *const Timespec) -> c_int;
    fn getpid() -> c_int;
    fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize;
    fn getrlimit(resource: c_int, limit: *mut Rlimit) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64;
    fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    fn mkdirat(directory: c_int, path: *const c_char, mode: c_uint) -> c_int;
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
    pub size: u64,
    pub blocks: u64,
    pub inode: u64,
    pub device: u64,
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
        size: found.size,
        blocks: found.blocks,
        inode: found.inode,
        device: u64::from(found.device[0]) << 32 | u64::from(found.device[1]),
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

/// The kernel's number of the file system on which something open lies.
pub fn file_system_of(fd: &OwnedFd) -> io::Result<i64> {
    let mut found = [0_i64; 32];
    // SAFETY: the structure is shorter than this, and begins with the number.
    check(unsafe { fstatfs(fd.as_raw_fd(), found.as_mut_ptr().cast()) })?;
    Ok(found[0])
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
    const HEAD: usize = 19; // inode u64, offset i64, length u16, kind u8
    let mut buffer = [0_u8; 4096];
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

/// Signals a process; a negative number is a group, -1 everything but this process.
pub fn send_signal(pid: i32, number: i32) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { kill(pid, number) }).map(drop)
}

/// Enters a fresh namespace of host names, which marks what is started from now on.
pub fn enter_fresh_uts() -> io::Result<()> {
    // SAFETY: plain call; this process has one thread.
    check(unsafe { unshare(CLONE_NEWUTS) }).map(drop)
}

/// Keeps what this process may from the programs that it starts.
pub fn keep_capabilities() {
    const PR_CAP_AMBIENT: c_int = 47;
    const CLEAR_ALL: c_ulong = 4;
    // SAFETY: plain call; it fails where there is no such set.
    unsafe { prctl(PR_CAP_AMBIENT, CLEAR_ALL, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) };
}

/// Makes a process give way to others.
pub fn set_nice(pid: i32, nice: i32) {
    // SAFETY: plain call; 0 is PRIO_PROCESS.
    unsafe { setpriority(0, pid as c_uint, nice) };
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
    // SAFETY: one thread; the child makes plain calls on what was prepared, and ends by exec or `_exit`.
    let pid = check(unsafe { fork() })?;
    if pid == 0 {
        // SAFETY: in the child; all pointers are to memory that it has a copy of.
        unsafe {
            become_program(&path, &arguments, &environment, program, terminal.as_deref());
            let number = io::Error::last_os_error().raw_os_error().unwrap_or(EIO).to_ne_bytes();
            write(said.as_raw_fd(), number.as_ptr().cast(), number.len());
            _exit(127)
        }
    }
    Ok((pid, report))
}

/// In the child: returns where it could not become the program.
///
/// # Safety
/// After a fork; the lists end with null.
unsafe fn become_program(
    path: &CStr,
    arguments: &[*const c_char],
    environment: &[*const c_char],
    program: &Program<'_>,
    terminal: Option<&CStr>,
) {
    setsid();
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
    for number in 1..=LAST_SIGNAL {
        signal(number, SIG_DFL);
    }
    let none: SignalSet = [0; 16];
    sigprocmask(SIG_SETMASK, &none, ptr::null_mut());
    if let Some(terminal) = terminal {
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
    execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr());
}
