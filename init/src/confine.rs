//! What the steps of a plan ask of the kernel, on the way to being a sandbox's process 1.
//!
//! A plan comes from the server (`plan.py`), which knows why each step is there. Nothing here decides anything.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::json::Value;
use crate::sys::{self, MountChange, AT_FDCWD, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_RDONLY, O_WRONLY};

const OF_PROC: u64 = sys::MS_NOSUID | sys::MS_NODEV | sys::MS_NOEXEC;
/// Flags of a mount that came from outside are locked: a remount has to repeat them.
const KEPT_FLAGS: [(&str, u64); 7] = [
    ("ro", sys::MS_RDONLY),
    ("nosuid", sys::MS_NOSUID),
    ("nodev", sys::MS_NODEV),
    ("noexec", sys::MS_NOEXEC),
    ("noatime", sys::MS_NOATIME),
    ("nodiratime", sys::MS_NODIRATIME),
    ("relatime", sys::MS_RELATIME),
];
/// Of settings that only newer kernels have, or let a sandbox change.
const NOT_TO_BE_SET: [i32; 4] = [sys::ENOENT, sys::EACCES, sys::EPERM, sys::EROFS];
/// What an image can have where a file should be: it stays as it is.
const OF_THE_IMAGE: [i32; 6] = [sys::EISDIR, sys::ENOTDIR, sys::ENOENT, sys::EEXIST, sys::ELOOP, sys::EACCES];
/// Files that nobody but root of the sandbox reads.
const PRIVATE: [&[u8]; 2] = [b"/etc/shadow", b"/etc/gshadow"];
const RESOURCES: [(&str, i32); 9] = [
    ("fsize", 1),
    ("core", 4),
    ("nproc", 6),
    ("nofile", 7),
    ("memlock", 8),
    ("sigpending", 11),
    ("msgqueue", 12),
    ("nice", 13),
    ("rtprio", 14),
];
/// A file system in memory has room for one file with something in it for each of these, and for so many in any case. The kernel would let
/// it have as many empty ones as there are half of the machine's pages, in memory of its own.
const PAGE_BYTES: u64 = 4096;
const LEAST_FILES: u64 = 1024;
/// Where the caller's read-only files are written, in the sandbox's place.
const MOUNTED: &str = "mounted";

/// Why a sandbox does not come to be.
pub enum Failure {
    /// A step failed; which, and how.
    Step(String),
    /// A file cannot be mounted where the caller wants it.
    Unfit(String),
}

/// One process on its way in.
pub struct Confinement {
    /// Whether the kernel has mount_setattr (5.12).
    pub modern: bool,
    /// What the caller's read-only files hold, one behind the other.
    pub content: Option<OwnedFd>,
    pub filter: Vec<u8>,
    /// The network namespace is the zygote's, which has raised its loopback.
    pub network_is_up: bool,
    /// The sandbox's place, where that is seen by its ids.
    pub place: Option<OwnedFd>,
    /// What lies below its own layer, the uppermost first, where that is seen by its ids.
    pub lower: Vec<OwnedFd>,
    /// Who made it.
    zygote: OwnedFd,
    /// There are no namespaces: Landlock confines the process where it is.
    pub stays: bool,
    ruleset: Option<OwnedFd>,
    kept: HashMap<Vec<u8>, OwnedFd>,
    attributes: HashMap<Vec<u8>, u64>,
}

type Arguments<'a> = &'a [Value];

fn malformed() -> io::Error {
    io::Error::from_raw_os_error(sys::EINVAL)
}

fn text(value: Option<&Value>) -> io::Result<&[u8]> {
    match value {
        Some(Value::Text(text)) => Ok(text),
        _ => Err(malformed()),
    }
}

fn number(value: Option<&Value>) -> io::Result<u64> {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).map_err(|_| malformed()),
        _ => Err(malformed()),
    }
}

/// An id or a mode: one that is cut would be another.
fn word(value: Option<&Value>) -> io::Result<u32> {
    u32::try_from(number(value)?).map_err(|_| malformed())
}

fn flag(value: Option<&Value>) -> io::Result<bool> {
    match value {
        Some(Value::Bool(flag)) => Ok(*flag),
        _ => Err(malformed()),
    }
}

fn list(value: Option<&Value>) -> io::Result<&[Value]> {
    match value {
        Some(Value::Array(items)) => Ok(items),
        _ => Err(malformed()),
    }
}

fn numbers(value: Option<&Value>) -> io::Result<Vec<u64>> {
    list(value)?.iter().map(|one| number(Some(one))).collect()
}

/// Attributes by their names, as flags of mount(2) and of mount_setattr(2) alike.
fn attributes(value: Option<&Value>) -> io::Result<u64> {
    let mut flags = 0;
    for name in list(value)? {
        flags |= match text(Some(name))? {
            b"rdonly" => sys::MS_RDONLY,
            b"nosuid" => sys::MS_NOSUID,
            b"nodev" => sys::MS_NODEV,
            _ => return Err(malformed()),
        };
    }
    Ok(flags)
}

impl Confinement {
    pub fn new(zygote: OwnedFd, modern: bool, content: Option<OwnedFd>, filter: Vec<u8>) -> Confinement {
        Confinement {
            modern,
            content,
            filter,
            network_is_up: false,
            place: None,
            lower: Vec::new(),
            zygote,
            stays: false,
            ruleset: None,
            kept: HashMap::new(),
            attributes: HashMap::new(),
        }
    }

    pub fn keep(&mut self, name: &[u8], fd: OwnedFd) {
        self.kept.insert(name.to_vec(), fd);
    }

    /// Gives a descriptor away.
    pub fn kept(&mut self, name: &[u8]) -> io::Result<OwnedFd> {
        self.kept.remove(name).ok_or_else(malformed)
    }

    /// Takes the steps in order: each its name, its arguments, and why it is there.
    pub fn execute(&mut self, steps: &Value) -> Result<(), Failure> {
        let wrong = |_| Failure::Step("the plan cannot be read".to_owned());
        for step in list(Some(steps)).map_err(wrong)? {
            let parts = list(Some(step)).map_err(wrong)?;
            let name = text(parts.first()).map_err(wrong)?;
            let arguments = list(parts.get(1)).map_err(wrong)?;
            if name == b"put_mounted" {
                self.put_mounted(arguments)?;
                continue;
            }
            self.take(name, arguments).map_err(|error| {
                let reason = String::from_utf8_lossy(text(parts.get(2)).unwrap_or(b"")).into_owned();
                Failure::Step(format!("{} ({reason}): {error}", String::from_utf8_lossy(name)))
            })?;
        }
        Ok(())
    }

    fn take(&mut self, name: &[u8], given: Arguments<'_>) -> io::Result<()> {
        match name {
            b"place" => {
                sys::enter_directory(text(given.first())?)?;
                // As who may still pass: by another id this directory is closed.
                self.place.as_ref().map_or(Ok(()), |fd| sys::attach_mount(fd, b"."))
            }
            b"own_place" => sys::change_directory(&self.place.take().ok_or_else(malformed)?),
            b"take" => self.take_sources(given),
            b"take_directory" => self.take_directory(given),
            b"identity" => self.have_identity(),
            b"private_mounts" => sys::mount_on(Some(b"none"), b"/", None, sys::MS_REC | sys::MS_PRIVATE, None),
            b"write_mounted" => self.write_mounted(given),
            b"bind_self" => {
                let (path, flags) = (text(given.first())?, attributes(given.get(1))?);
                let fd = self.copy(path, flags, false)?;
                self.attach(fd, path, flags)
            }
            b"put_lower" => {
                let target = text(given.first())?;
                // One over the other: an overlay takes nothing that is not mounted somewhere.
                self.lower.iter().try_for_each(|fd| sys::attach_mount(fd, target))
            }
            b"put_merged" => self.attach_kept(b"merged", text(given.first())?),
            b"overlay" => self.overlay(given),
            b"lend_root" => self.lend(text(given.first())?),
            b"keep_layer" if self.stays => self.keep_folder(given),
            b"keep_layer" => self.keep_layer(given),
            b"session" => {
                sys::lead_session();
                Ok(())
            }
            b"rules" => self.make_rules(given),
            b"rule_of_directory" => {
                let fd = open_known(text(given.first())?, number(given.get(1))?, number(given.get(2))?)?;
                let ruleset = self.ruleset.as_ref().ok_or_else(malformed)?;
                sys::allow_below(ruleset, &fd, number(given.get(3))?)
            }
            b"offer" => offer(number(given.first())?),
            b"ids" => sys::be(word(given.first())?, word(given.get(1))?),
            b"asking_filter" => {
                let asked = sys::load_asking_filter(&self.filter)?;
                self.keep(b"asked", asked);
                Ok(())
            }
            b"restrict" => {
                sys::restrict(&self.ruleset.take().ok_or_else(malformed)?)?;
                sys::enter_directory(b"/")
            }
            b"enter_root" => {
                let old = sys::open_at(AT_FDCWD, b"/", O_RDONLY | O_DIRECTORY, 0)?;
                self.keep(b"old root", old);
                sys::enter_directory(text(given.first())?)?;
                let new = sys::open_at(AT_FDCWD, b".", O_PATH | O_DIRECTORY, 0)?;
                self.keep(b"new root", new);
                sys::change_root(b".")
            }
            b"pivot" => {
                let old = self.kept.get(&b"old root"[..]).ok_or_else(malformed)?;
                sys::change_directory(old)?;
                sys::change_root(b".")?;
                sys::change_directory(&self.kept(b"new root")?)?;
                sys::pivot_root(b".", b".")
            }
            b"leave_old_root" => {
                sys::change_directory(&self.kept(b"old root")?)?;
                sys::unmount(b".")?;
                sys::enter_directory(b"/")
            }
            b"directories" => pairs(given, |path, mode| make_directory(path, word(Some(mode))?)),
            b"own_top" => self.own_top(number(given.first())?),
            b"mount_points" => pairs(given, |path, mode| make_real_directory(path, word(Some(mode))?)),
            b"links" => pairs(given, |path, target| sys::make_link(text(Some(target))?, AT_FDCWD, path)),
            b"unlink" => each(given, |path| sys::unlink(AT_FDCWD, path)),
            b"files" => pairs(given, |path, content| create(path, text(Some(content))?)),
            b"own_links" => pairs(given, |path, target| match own_link(path, text(Some(target))?) {
                Err(error) if OF_THE_IMAGE.contains(&sys::number_of(&error)) => Ok(()),
                result => result,
            }),
            b"put" => self.put_all(given),
            b"put_directory" => {
                let name = text(given.first())?.to_vec();
                self.put(&name, text(given.get(1))?)
            }
            b"proc" => sys::mount_on(Some(b"proc"), b"/proc", Some(b"proc"), OF_PROC, None),
            b"shared_devices" => self.put(b"devices", b"/dev"),
            b"devices" => self.make_devices(given),
            b"terminals" => {
                let options = format!("newinstance,ptmxmode=0666,mode=620,max={}", number(given.first())?);
                let flags = sys::MS_NOSUID | sys::MS_NOEXEC;
                sys::mount_on(Some(b"devpts"), b"/dev/pts", Some(b"devpts"), flags, Some(options.as_bytes()))
            }
            b"tmpfs" => {
                let (size, mode) = (number(given.get(1))?, number(given.get(2))?);
                let files = (size / PAGE_BYTES).max(LEAST_FILES);
                let options = format!("mode={mode:o},size={size},nr_inodes={files}");
                let flags = sys::MS_NOSUID | sys::MS_NODEV;
                let target = text(given.first())?;
                sys::mount_on(Some(b"tmpfs"), target, Some(b"tmpfs"), flags, Some(options.as_bytes()))
            }
            b"cover_read_only" => cover_read_only(given),
            b"cover_file" => each(given, |path| sys::mount_on(Some(b"/dev/null"), path, None, sys::MS_BIND, None)),
            b"cover_with" => {
                pairs(given, |path, by| sys::mount_on(Some(text(Some(by))?), path, None, sys::MS_BIND, None))
            }
            b"cover_directory" => self.cover_directories(given),
            b"no_more_namespaces" => write(b"/proc/sys/user/max_user_namespaces", b"1"),
            b"kernel_counts" => {
                pairs(given, |name, value| match write(&[b"/proc/sys/", name].concat(), text(Some(value))?) {
                    Err(error) if NOT_TO_BE_SET.contains(&sys::number_of(&error)) => Ok(()),
                    result => result,
                })
            }
            b"loopback" if self.network_is_up => Ok(()),
            b"loopback" => sys::raise_loopback(),
            b"watch_sockets" => {
                let fd = sys::open_diagnosis()?;
                self.keep(b"sockets", fd);
                Ok(())
            }
            b"hostname" => sys::name_host(text(given.first())?),
            b"last_user_namespace" => enter_user_namespace(&id_map(0, number(given.first())?)),
            b"own_user_namespace" => {
                enter_user_namespace(&id_map(0, number(given.first())?.min(crate::accounts::mapped())))
            }
            b"clear" => pairs(given, |path, is_directory| {
                sys::unmount(path)?;
                let removed = if flag(Some(is_directory))? {
                    sys::remove_directory(AT_FDCWD, path)
                } else {
                    sys::unlink(AT_FDCWD, path)
                };
                match removed {
                    // Of an image whose root cannot be written to.
                    Err(error) if sys::number_of(&error) == sys::EROFS => Ok(()),
                    result => result,
                }
            }),
            b"limits" => pairs(given, |name, value| {
                let known = RESOURCES.iter().find(|(own, _)| own.as_bytes() == name).ok_or_else(malformed)?;
                sys::limit_resource(known.1, number(Some(value))?)
            }),
            b"processors" => match sys::run_on(&numbers(given.first())?) {
                Err(error) if sys::number_of(&error) == sys::EINVAL => Ok(()), // None of them is left.
                result => result,
            },
            b"capabilities" => {
                let (kept, rights) = (numbers(given.first())?, numbers(given.get(1))?);
                if kept.iter().chain(&rights).any(|number| *number >= u64::BITS.into()) {
                    return Err(malformed());
                }
                // Whoever is root has, after it has started a program, what is left here.
                sys::bound_capabilities(&rights)?;
                sys::keep_capabilities();
                sys::set_capabilities(kept.iter().chain(&rights).fold(0, |bits, number| bits | 1 << number))
            }
            b"settle" => {
                if self.stays {
                    sys::control(sys::PR_SET_CHILD_SUBREAPER, 1)?;
                    if sys::effective_user() == 0 {
                        sys::set_capabilities(0)?;
                    }
                }
                sys::control(sys::PR_SET_NO_NEW_PRIVS, 1)?;
                sys::set_umask(word(given.first())?);
                sys::control(sys::PR_SET_DUMPABLE, 0)
            }
            b"filter" => sys::load_filter(&self.filter),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "this zygote knows no such step")),
        }
    }

    // -- sources and identity ---------------------------------------------------------------------------------------------

    fn take_sources(&mut self, given: Arguments<'_>) -> io::Result<()> {
        for source in list(given.first())? {
            let parts = list(Some(source))?;
            let (path, name) = (text(parts.first())?, text(parts.get(1))?);
            self.keep_copy(name, path, attributes(parts.get(2))?, false)?;
        }
        Ok(())
    }

    fn take_directory(&mut self, given: Arguments<'_>) -> io::Result<()> {
        let (path, name) = (text(given.first())?, text(given.get(3))?);
        if self.kept.contains_key(name) {
            return Ok(());
        }
        let fd = open_known(path, number(given.get(1))?, number(given.get(2))?)?;
        let source = format!("/proc/self/fd/{}", fd.as_raw_fd());
        self.keep_copy(name, source.as_bytes(), attributes(given.get(4))?, true)?;
        std::mem::forget(fd); // An old kernel attaches by its path; it is closed with all others.
        Ok(())
    }

    fn keep_copy(&mut self, name: &[u8], path: &[u8], flags: u64, private: bool) -> io::Result<()> {
        if !self.kept.contains_key(name) {
            let fd = self.copy(path, flags, private)?;
            self.keep(name, fd);
            self.attributes.insert(name.to_vec(), flags);
        }
        Ok(())
    }

    fn have_identity(&self) -> io::Result<()> {
        sys::be(0, 0)?;
        // The change of uid took /proc/self away from us, which the second map needs.
        sys::control(sys::PR_SET_DUMPABLE, 1)
    }

    /// Cuts the content into files of the sandbox's place.
    fn write_mounted(&mut self, given: Arguments<'_>) -> io::Result<()> {
        let content = self.content.take().ok_or_else(malformed)?;
        sys::set_mode_at(MOUNTED.as_bytes(), 0o700)?;
        let mut offset = 0;
        for (at, size) in numbers(given.first())?.into_iter().enumerate() {
            let path = format!("{MOUNTED}/{at}").into_bytes();
            let fd = sys::open_at(AT_FDCWD, &path, O_WRONLY | O_CREAT | O_EXCL, 0o600)?;
            let end = offset + size;
            while offset < end {
                match sys::copy_between(&content, offset, &fd, end - offset)? {
                    0 => offset = end,
                    count => offset += count as u64,
                }
            }
            sys::set_mode(&fd, 0o444)?;
            self.keep_copy(&path, &path, sys::MS_RDONLY | sys::MS_NOSUID | sys::MS_NODEV, false)?;
        }
        Ok(())
    }

    // -- the root ---------------------------------------------------------------------------------------------------------

    fn overlay(&mut self, given: Arguments<'_>) -> io::Result<()> {
        let (layers, target) = (text(given.get(1))?, text(given.get(2))?);
        let flags = attributes(given.get(3))?;
        if layers != b"." {
            for name in ["upper", "work"] {
                make_directory(&[layers, b"/", name.as_bytes()].concat(), 0o755)?;
            }
        }
        for path in list(given.first())? {
            self.lower.push(sys::open_at(AT_FDCWD, text(Some(path))?, O_PATH, 0)?);
        }
        // The option's own separators need no escape when a path is a descriptor's, which tells nothing of the machine or of this
        // sandbox to a later one that has its root.
        let links: Vec<String> = self.lower.iter().map(|fd| format!("/proc/self/fd/{}", fd.as_raw_fd())).collect();
        let lower = links.join(":");
        let options =
            [b"lowerdir=", lower.as_bytes(), b",upperdir=", layers, b"/upper,workdir=", layers, b"/work,userxattr"]
                .concat();
        // Volatile: else its end would write all that anybody has written to that disk, and wait until it is there. Not before
        // Linux 5.10, and not where the disk has had an error that nobody has been told of.
        let volatile = [&options[..], b",volatile"].concat();
        let mount = |options: &[u8]| sys::mount_on(Some(b"overlay"), target, Some(b"overlay"), flags, Some(options));
        mount(&volatile).or_else(|_| mount(&options))
    }

    /// Makes the root as the top of a layer is: overlayfs takes that from the uppermost directory alone.
    fn own_top(&self, layer: u64) -> io::Result<()> {
        let top = self.lower.get(layer as usize).ok_or_else(malformed)?;
        let found = sys::stat_open(top)?;
        if (found.uid, found.gid) != (0, 0) {
            match sys::own_name(AT_FDCWD, b"/", found.uid, found.gid) {
                // There is one user inside.
                Err(error) if sys::number_of(&error) == sys::EINVAL => {}
                result => result?,
            }
        }
        sys::set_mode_at(b"/", found.permissions())
    }

    fn keep_layer(&mut self, given: Arguments<'_>) -> io::Result<()> {
        let path = text(given.first())?;
        // A mount of its own: its `..` leads nowhere, and what is mounted inside does not hide what lies below.
        let fd = sys::copy_mount(AT_FDCWD, path, false)?;
        if path != b"root" {
            // It is let go together with the old root, which leaves it to its descriptor alone. As a mount that ends by itself, with
            // process 1, it would have the kernel stop every processor once more.
            sys::attach_mount(&fd, path)?;
        }
        self.keep(b"layer", fd);
        Ok(())
    }

    // -- where there are no namespaces --------------------------------------------------------------------------------------

    fn keep_folder(&mut self, given: Arguments<'_>) -> io::Result<()> {
        let path = text(given.first())?;
        sys::set_mode_at(path, 0o700)?;
        let layer = sys::open_at(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0)?;
        // What could be asked of sockets would be all of the machine's.
        let sockets = sys::open_at(AT_FDCWD, b"/dev/null", O_RDONLY, 0)?;
        self.keep(b"layer", layer);
        self.keep(b"sockets", sockets);
        Ok(())
    }

    /// What Landlock will leave open of all that its version can refuse.
    fn make_rules(&mut self, given: Arguments<'_>) -> io::Result<()> {
        let version = number(given.first())?;
        let ruleset = sys::make_ruleset(&handled(version))?;
        for entry in list(given.get(1))? {
            let parts = list(Some(entry))?;
            let (path, rights) = (text(parts.first())?, number(parts.get(1))?);
            let is_directory = match sys::stat_path(AT_FDCWD, path) {
                Ok(found) => found.is_directory(),
                Err(_) => continue,
            };
            // A right that a path cannot have is an error; one that is left with none, too.
            let fitting = if is_directory { rights } else { rights & OF_A_FILE };
            if fitting != 0 {
                sys::allow_below(&ruleset, &sys::open_at(AT_FDCWD, path, O_PATH, 0)?, fitting)?;
            }
        }
        self.ruleset = Some(ruleset);
        Ok(())
    }

    /// Sends the root to the zygote, for a sandbox to come. Nothing is lost where that fails.
    fn lend(&self, path: &[u8]) -> io::Result<()> {
        if let Ok(fd) = sys::copy_mount(AT_FDCWD, path, false) {
            drop(sys::send_message(&self.zygote, b"r", &[fd.as_raw_fd()]));
        }
        Ok(())
    }

    // -- filling it -------------------------------------------------------------------------------------------------------

    fn put_all(&mut self, given: Arguments<'_>) -> io::Result<()> {
        for mount in list(given.first())? {
            let parts = list(Some(mount))?;
            let (name, target) = (text(parts.first())?.to_vec(), text(parts.get(1))?);
            make_target(target, flag(parts.get(2))?)?;
            self.put(&name, target)?;
        }
        Ok(())
    }

    fn put(&mut self, name: &[u8], target: &[u8]) -> io::Result<()> {
        let fd = self.kept(name)?;
        let flags = self.attributes.get(name).copied().unwrap_or(0);
        self.attach(fd, target, flags)
    }

    fn attach_kept(&mut self, name: &[u8], target: &[u8]) -> io::Result<()> {
        sys::attach_mount(&self.kept(name)?, target)
    }

    fn make_devices(&mut self, given: Arguments<'_>) -> io::Result<()> {
        let options: &[u8] = b"mode=755,size=64k";
        sys::mount_on(Some(b"tmpfs"), b"/dev", Some(b"tmpfs"), sys::MS_NOSUID, Some(options))?;
        for name in list(given.first())? {
            let name = text(Some(name))?;
            let path = [b"/dev/", name].concat();
            make_file(&path)?;
            self.put(&[b"device ", name].concat(), &path)?;
        }
        let below = |name: &[u8]| [b"/dev/", name].concat();
        pairs(&given[1..], |name, target| sys::make_link(text(Some(target))?, AT_FDCWD, &below(name)))?;
        each(&given[2..], |name| make_directory(&below(name), 0o755))?;
        let flags = sys::MS_REMOUNT | sys::MS_BIND | sys::MS_RDONLY | sys::MS_NOSUID;
        sys::mount_on(None, b"/dev", None, flags, None)
    }

    fn cover_directories(&mut self, given: Arguments<'_>) -> io::Result<()> {
        let taken = flag(given.get(1))?;
        for path in list(given.first())? {
            let path = text(Some(path))?;
            if taken {
                self.put(&[b"empty ", path].concat(), path)?;
                continue;
            }
            // There is nothing empty and read only that could be bound in its place.
            let flags = sys::MS_RDONLY | sys::MS_NOSUID | sys::MS_NODEV;
            sys::mount_on(Some(b"tmpfs"), path, Some(b"tmpfs"), flags, Some(b"size=4k,nr_inodes=1"))?;
        }
        Ok(())
    }

    /// Puts the caller's files in, and pins the directories above them: whoever renames one of those gets EBUSY, and so cannot put
    /// a file of his own under the same path.
    fn put_mounted(&mut self, given: Arguments<'_>) -> Result<(), Failure> {
        let paths: Vec<Vec<u8>> = list(given.first())
            .and_then(|paths| paths.iter().map(|path| Ok(text(Some(path))?.to_vec())).collect())
            .map_err(|error: io::Error| Failure::Step(format!("put_mounted: {error}")))?;
        let mut pinned = HashSet::new();
        for path in &paths {
            self.make_mount_point(path, &mut pinned)?;
        }
        for (at, path) in paths.iter().enumerate() {
            let name = format!("{MOUNTED}/{at}").into_bytes();
            self.put(&name, path).map_err(|error| Failure::Step(format!("put_mounted: {error}")))?;
        }
        Ok(())
    }

    fn make_mount_point(&mut self, path: &[u8], pinned: &mut HashSet<Vec<u8>>) -> Result<(), Failure> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let unfit = |why: String| Failure::Unfit(format!("'{shown}' cannot be mounted: {why}"));
        let failed = |at: &[u8], error: io::Error| {
            let why = sys::describe(sys::number_of(&error));
            unfit(format!("{}: {why}", String::from_utf8_lossy(at)))
        };
        let mut above = b"/".to_vec();
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').skip(1).collect();
        for name in &names[..names.len().saturating_sub(1)] {
            let at = crate::paths::join(&above, name);
            let text = String::from_utf8_lossy(&at).into_owned();
            match kind_of(&at).map_err(|error| failed(&at, error))? {
                None => sys::make_directory(AT_FDCWD, &at, 0o755).map_err(|error| failed(&at, error))?,
                Some(sys::S_IFLNK) => {
                    let target = sys::read_link(AT_FDCWD, &at).map_err(|error| failed(&at, error))?;
                    let target = String::from_utf8_lossy(&target).into_owned();
                    return Err(unfit(format!("'{text}' is a link to '{target}'; give the path behind it")));
                }
                Some(sys::S_IFDIR) => {}
                Some(_) => return Err(unfit(format!("'{text}' is no directory"))),
            }
            if pinned.insert(at.clone()) && self.is_on_the_device_of(&at, &above).map_err(|error| failed(&at, error))? {
                let fd = self.copy(&at, 0, false).map_err(|error| failed(&at, error))?;
                self.attach(fd, &at, 0).map_err(|error| failed(&at, error))?;
            }
            above = at;
        }
        match kind_of(path).map_err(|error| failed(path, error))? {
            None => make_file(path).map_err(|error| failed(path, error)),
            Some(sys::S_IFREG) => Ok(()),
            Some(_) => Err(unfit("something that is no regular file is there already".to_owned())),
        }
    }

    /// Another device is a mount already.
    fn is_on_the_device_of(&self, one: &[u8], other: &[u8]) -> io::Result<bool> {
        Ok(sys::stat_at(AT_FDCWD, one)?.device == sys::stat_at(AT_FDCWD, other)?.device)
    }

    // -- mounts, on new kernels and old -----------------------------------------------------------------------------------

    /// A mount to be attached later; `private`: no later mount of the machine's comes to it.
    fn copy(&self, path: &[u8], flags: u64, private: bool) -> io::Result<OwnedFd> {
        if !self.modern {
            // What it is attached from has been made private by then.
            return sys::open_at(AT_FDCWD, path, O_PATH, 0);
        }
        let fd = sys::copy_mount(AT_FDCWD, path, true)?;
        if flags != 0 || private {
            let change = MountChange { attributes: flags, recursive: true, private, user_namespace: None };
            sys::change_mount(&fd, change)?;
        }
        Ok(fd)
    }

    fn attach(&self, fd: OwnedFd, target: &[u8], flags: u64) -> io::Result<()> {
        if self.modern {
            return sys::attach_mount(&fd, target);
        }
        let source = format!("/proc/self/fd/{}", fd.as_raw_fd());
        sys::mount_on(Some(source.as_bytes()), target, None, sys::MS_BIND | sys::MS_REC, None)?;
        if flags != 0 {
            remount(target, flags)?;
        }
        Ok(())
    }
}

/// Of Landlock: to execute, write, read, truncate, and control devices: what a rule of something that is no directory may grant.
const OF_A_FILE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15;

/// All that a version of Landlock can refuse: of files, of TCP, and by scope. Linux 5.19, 6.2, 6.7, 6.10 and 6.12 brought more.
fn handled(version: u64) -> Vec<u64> {
    let mut files = (1 << 13) - 1;
    for (needed, right) in [(2, 1 << 13), (3, 1 << 14), (5, 1 << 15)] {
        files |= if version >= needed { right } else { 0 };
    }
    let mut words = vec![files];
    if version >= 4 {
        words.push(3);
    }
    if version >= 6 {
        words.push(3);
    }
    words
}

/// Where the machine runs out of memory, this process goes before others.
fn offer(badness: u64) -> io::Result<()> {
    let fd = sys::open_at(AT_FDCWD, b"/proc/self/oom_score_adj", sys::O_RDWR, 0)?;
    let mut own = [0; 32];
    let count = sys::read_from(&fd, &mut own, 0)?;
    let own: i64 = std::str::from_utf8(&own[..count]).ok().and_then(|own| own.trim().parse().ok()).unwrap_or(0);
    sys::write_some(&fd, (own + badness as i64).min(1000).to_string().as_bytes()).map(drop)
}

/// A directory that is what it was: of these numbers, and no link.
pub fn open_known(path: &[u8], device: u64, inode: u64) -> io::Result<OwnedFd> {
    const ESTALE: i32 = 116;
    let fd = sys::open_at(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0)?;
    let found = sys::stat_open(&fd)?;
    if (found.device, found.inode) != (device, inode) {
        return Err(io::Error::from_raw_os_error(ESTALE));
    }
    Ok(fd)
}

/// What maps 0 and those behind it to as many from the first on.
///
/// Of 0 by itself: a range has to lie in one range of the namespace around, where root may be one and all others another.
pub fn id_map(first: u64, ids: u64) -> Vec<u8> {
    let rest = if ids > 1 { format!("1 {} {}\n", first + 1, ids - 1) } else { String::new() };
    format!("0 {first} 1\n{rest}").into_bytes()
}

fn pairs(given: Arguments<'_>, mut call: impl FnMut(&[u8], &Value) -> io::Result<()>) -> io::Result<()> {
    for pair in list(given.first())? {
        match list(Some(pair))? {
            [name, value] => call(text(Some(name))?, value)?,
            _ => return Err(malformed()),
        }
    }
    Ok(())
}

fn each(given: Arguments<'_>, mut call: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    for one in list(given.first())? {
        call(text(Some(one))?)?;
    }
    Ok(())
}

/// Makes one if there is nothing of that name; bits above the usual ones are set then.
fn make_directory(path: &[u8], mode: u32) -> io::Result<()> {
    match sys::make_directory(AT_FDCWD, path, mode) {
        Err(error) if sys::number_of(&error) == sys::EEXIST => Ok(()),
        Ok(()) if mode & !0o777 != 0 => sys::set_mode_at(path, mode),
        result => result,
    }
}

/// Has a link there, in place of anything else of that name that is no directory.
fn own_link(path: &[u8], target: &[u8]) -> io::Result<()> {
    if sys::read_link(AT_FDCWD, path).map_or(false, |found| found == target) {
        return Ok(());
    }
    match sys::unlink(AT_FDCWD, path) {
        Err(error) if sys::number_of(&error) != sys::ENOENT => Err(error),
        _ => sys::make_link(target, AT_FDCWD, path),
    }
}

/// Has a directory there, in place of anything else of that name.
fn make_real_directory(path: &[u8], mode: u32) -> io::Result<()> {
    match sys::make_directory(AT_FDCWD, path, mode) {
        Err(error) if sys::number_of(&error) == sys::EEXIST => {
            if kind_of(path)? == Some(sys::S_IFDIR) {
                return Ok(());
            }
            sys::unlink(AT_FDCWD, path)?;
            sys::make_directory(AT_FDCWD, path, mode)
        }
        result => result,
    }
}

/// Makes an empty file if there is nothing of that name.
fn make_file(path: &[u8]) -> io::Result<()> {
    match sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0o444) {
        Err(error) if sys::number_of(&error) != sys::EEXIST => Err(error),
        _ => Ok(()),
    }
}

/// A new file with this content; one that says what it is run by can be run.
fn create(path: &[u8], content: &[u8]) -> io::Result<()> {
    let mode = if PRIVATE.contains(&path) {
        0o600
    } else if path.starts_with(b"/sys/") {
        0o444
    } else if content.starts_with(b"#!") {
        0o755
    } else {
        0o644
    };
    let fd = sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, mode)?;
    sys::write_all(&fd, content)
}

/// Writes into a file that is there, all in one call.
fn write(path: &[u8], content: &[u8]) -> io::Result<()> {
    sys::write_some(&sys::open_at(AT_FDCWD, path, O_WRONLY, 0)?, content).map(drop)
}

/// Something to mount on.
fn make_target(path: &[u8], is_directory: bool) -> io::Result<()> {
    let ends = path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0).map(|(at, _)| at);
    for end in ends.chain(is_directory.then_some(path.len())) {
        make_directory(&path[..end], 0o755)?;
    }
    if is_directory {
        Ok(())
    } else {
        make_file(path)
    }
}

fn kind_of(path: &[u8]) -> io::Result<Option<u32>> {
    match sys::stat_at(AT_FDCWD, path) {
        Ok(found) => Ok(Some(found.kind())),
        Err(error) if sys::number_of(&error) == sys::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is bound has the attributes of the mount that it is seen by: one change of that is cheaper than one of each.
fn cover_read_only(given: Arguments<'_>) -> io::Result<()> {
    let remount = sys::MS_REMOUNT | sys::MS_BIND | OF_PROC;
    sys::mount_on(None, b"/proc", None, remount | sys::MS_RDONLY, None)?;
    each(given, |path| match sys::mount_on(Some(path), path, None, sys::MS_BIND, None) {
        Err(error) if sys::number_of(&error) == sys::ENOENT => Ok(()),
        result => result,
    })?;
    sys::mount_on(None, b"/proc", None, remount, None)
}

/// Is in a new user namespace with these ids. More than one can be mapped only by somebody who is in the namespace around.
fn enter_user_namespace(ids: &[u8]) -> io::Result<()> {
    let process = sys::open_at(AT_FDCWD, b"/proc/self", O_PATH | O_DIRECTORY, 0)?;
    let (told, tell) = sys::make_pipe()?;
    let mut map = || {
        let mapped = sys::read_some(&told, &mut [0; 1]).and_then(|_| {
            for name in ["uid_map", "gid_map"] {
                let fd = sys::open_at(process.as_raw_fd(), name.as_bytes(), O_WRONLY, 0)?;
                sys::write_some(&fd, ids)?;
            }
            Ok(())
        });
        mapped.map_or_else(|error| sys::number_of(&error).max(1), |()| 0)
    };
    let (entered, code) = sys::with_helper(&mut map, || {
        let entered = sys::leave_for_new(sys::CLONE_NEWUSER);
        // It is told in any case: it waits for that.
        sys::write_some(&tell, b"g").and(entered)
    })?;
    entered?;
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(code))
    }
}

/// Adds flags to a bind mount and everything mounted below it, repeating the flags that are locked.
fn remount(target: &[u8], flags: u64) -> io::Result<()> {
    let info = std::fs::read("/proc/self/mountinfo")?;
    let real = {
        let fd = sys::open_at(AT_FDCWD, target, O_PATH, 0)?;
        sys::read_link(AT_FDCWD, format!("/proc/self/fd/{}", fd.as_raw_fd()).as_bytes())?
    };
    let below = [crate::paths::without_slashes_at_its_end(&real), b"/"].concat();
    for line in info.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let (point, options) = match (fields.get(4), fields.get(5)) {
            (Some(point), Some(options)) => (unescaped(point), *options),
            _ => continue,
        };
        if point != real && !point.starts_with(&below) {
            continue;
        }
        let named =
            |name: &[u8]| KEPT_FLAGS.iter().find(|(own, _)| own.as_bytes() == name).map_or(0, |(_, flag)| *flag);
        let kept = options.split(|byte| *byte == b',').fold(0, |kept, name| kept | named(name));
        // From where we stand: the way from / may lead through directories that this id may not enter.
        let reachable = if point == real { target.to_vec() } else { crate::paths::join(target, &point[below.len()..]) };
        match sys::mount_on(None, &reachable, None, sys::MS_REMOUNT | sys::MS_BIND | kept | flags, None) {
            Err(error) if point != real && is_forgiven(&error) => {}
            result => result?,
        }
    }
    Ok(())
}

fn is_forgiven(error: &io::Error) -> bool {
    matches!(sys::number_of(error), sys::EACCES | sys::EPERM | sys::ENOENT | sys::EINVAL)
}

/// A path of mountinfo.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                path.push(byte);
                rest = &more[3..];
            }
            None => {
                path.push(*first);
                rest = more;
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mountinfo_are_read() {
        assert_eq!(unescaped(br"/a\040b\134c\011\\"), b"/a b\\c\t\\\\");
        assert_eq!(unescaped(br"/plain\9"), br"/plain\9");
    }

    #[test]
    fn ids_are_mapped_one_and_the_rest() {
        assert_eq!(id_map(1000, 1), b"0 1000 1\n");
        assert_eq!(id_map(5, 10), b"0 5 1\n1 6 9\n");
    }

    #[test]
    fn a_plan_with_an_unknown_step_says_so() {
        let (zygote, _told) = sys::message_pair().unwrap();
        let mut confinement = Confinement::new(zygote, true, None, Vec::new());
        let plan = crate::json::parse(br#"[["dance", [1], "why not"]]"#).unwrap();
        match confinement.execute(&plan) {
            Err(Failure::Step(why)) => assert_eq!(why, "dance (why not): this zygote knows no such step"),
            _ => panic!("it danced"),
        }
    }
}
