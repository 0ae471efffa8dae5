//! What this machine's kernel gives to sandboxes: each thing is tried in a child of its own, and the answers are JSON.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::json::{object, parse, Value};
use crate::sys::{self, AT_FDCWD};
use crate::zygote::{map_ids, seen_by};

const NAMESPACES: u64 = sys::CLONE_NEWUSER | sys::CLONE_NEWNS | sys::CLONE_NEWPID;
const TRIAL_MILLISECONDS: i32 = 10_000;

type Inside<'a> = &'a dyn Fn() -> io::Result<()>;

/// One attempt.
struct Attempt<'a> {
    namespaces: u64,
    /// The id on the machine that is 0 inside; without one no ids are mapped.
    uid: Option<u32>,
    group: Option<&'a OwnedFd>,
    /// By the parent, once ids are mapped.
    between: Option<&'a dyn Fn(i32) -> io::Result<()>>,
    inside: Inside<'a>,
}

/// All of it, in order; what depends on something that failed is left out.
pub fn probe(scratch: &str, uid: Option<u32>, groups: Option<&str>) -> Value {
    let root = sys::effective_user() == 0;
    let uid = uid.unwrap_or_else(sys::effective_user);
    let attempt = |namespaces: u64, inside: Inside<'_>| {
        Attempt { namespaces, uid: Some(uid), group: None, between: None, inside }.make()
    };
    let nothing = || Ok(());
    let cloned =
        Attempt { namespaces: sys::CLONE_NEWUSER, uid: None, group: None, between: None, inside: &nothing }.make();
    let forbidden = cloned.get("errno") == Some(&Value::from(sys::EPERM));
    let mut found = vec![("user_namespaces", cloned)];
    if is_well(&found, "user_namespaces") {
        found.push(("id_map", attempt(NAMESPACES, &nothing)));
    }
    if is_well(&found, "id_map") {
        found.push(("mounts", attempt(NAMESPACES, &private)));
        found.push(("filters", attempt(NAMESPACES, &sys::take_filters)));
        found.push(("network", attempt(NAMESPACES | sys::CLONE_NEWNET, &nothing)));
    }
    if is_well(&found, "mounts") {
        found.push(("root", attempt(NAMESPACES, &change_roots)));
        found.push(("proc", attempt(NAMESPACES, &mount_proc)));
        found.push(("overlay", overlay(scratch, uid, &attempt)));
        if root {
            let carries = is_well(&found, "overlay");
            found.push(("idmapped", idmapped(scratch, uid, carries)));
        }
        if let Some(groups) = groups {
            found.push(("groups", grouped(groups, uid)));
        }
    }
    if forbidden {
        found.push(("chroot", leads_out().into()));
    }
    Value::Object(found.into_iter().map(|(name, value)| (name.as_bytes().to_vec(), value)).collect())
}

fn is_well(found: &[(&str, Value)], name: &str) -> bool {
    found.iter().any(|(own, value)| *own == name && value.get("ok") == Some(&Value::Bool(true)))
}

fn failure(step: &str, error: &io::Error) -> Value {
    object([("ok", false.into()), ("step", step.into()), ("errno", sys::number_of(error).into())])
}

impl Attempt<'_> {
    /// Clones, maps, runs `inside`; what failed first is told by step and errno.
    fn make(&self) -> Value {
        self.tried().unwrap_or_else(|error| failure("clone", &error))
    }

    fn tried(&self) -> io::Result<Value> {
        let (go, lets_go) = sys::make_pipe()?;
        let (said, says) = sys::make_pipe()?;
        let pid = match sys::clone_into(self.namespaces, self.group)? {
            None => {
                drop(lets_go);
                self.be(&go, &says)
            }
            Some((pid, _)) => pid,
        };
        drop((go, says));
        let let_go = || sys::write_all(&lets_go, b"g");
        let prepared = match (self.prepare(pid), self.between) {
            (Err(error), _) => Err(failure("map", &error)),
            (Ok(()), None) => let_go().map_err(|error| failure("map", &error)),
            (Ok(()), Some(between)) => between(pid).and_then(|()| let_go()).map_err(|error| failure("between", &error)),
        };
        drop(lets_go);
        let mut text = [0; 4096];
        let mut count = 0;
        if sys::wait_readable(&[&said], TRIAL_MILLISECONDS) == [true] {
            count = sys::read_some(&said, &mut text).unwrap_or(0);
        }
        drop(sys::send_signal(pid, sys::SIGKILL)); // Whoever has not ended by now stands still.
        while sys::wait_blocking()?.0 != pid {}
        let died = || object([("ok", false.into()), ("step", "died".into()), ("errno", 0.into())]);
        Ok(prepared.err().unwrap_or_else(|| parse(&text[..count]).unwrap_or_else(|_| died())))
    }

    fn prepare(&self, pid: i32) -> io::Result<()> {
        match self.uid {
            Some(uid) => map_ids(pid, (uid.into(), group_of(uid)?.into(), 1)),
            None => Ok(()),
        }
    }

    fn be(&self, go: &OwnedFd, says: &OwnedFd) -> ! {
        let mut byte = [0];
        if sys::read_some(go, &mut byte).map_or(true, |count| count == 0) {
            sys::exit_now(1);
        }
        let ids = if self.uid.is_some() { sys::be(0, 0) } else { Ok(()) };
        let said = match ids.and_then(|()| (self.inside)()) {
            Ok(()) => object([("ok", true.into())]),
            Err(error) => failure("inside", &error),
        };
        drop(sys::write_all(says, &said.to_bytes()));
        sys::exit_now(0)
    }
}

/// The group on the machine that is 0 inside.
fn group_of(uid: u32) -> io::Result<u32> {
    // Of a process's own directory in /proc it is the process's.
    Ok(if sys::effective_user() == 0 { uid } else { fs::metadata("/proc/self")?.gid() })
}

fn private() -> io::Result<()> {
    sys::mount_on(Some(b"none"), b"/", None, sys::MS_REC | sys::MS_PRIVATE, None)
}

/// As a sandbox takes a root of its own and leaves the machine's; filters of containers forbid some of these calls.
///
/// It is put where everybody comes to: a sandbox is handed its place, whose path may be closed to it.
fn change_roots() -> io::Result<()> {
    const PLACE: &[u8] = b"/proc";
    private()?;
    sys::mount_on(Some(b"tmpfs"), PLACE, Some(b"tmpfs"), 0, None)?;
    let open = |place: &[u8]| sys::open_at(AT_FDCWD, place, sys::O_PATH | sys::O_DIRECTORY, 0);
    let old = open(b"/")?;
    sys::enter_directory(PLACE)?;
    let new = open(b".")?;
    sys::change_root(b".")?;
    sys::change_directory(&old)?;
    sys::change_root(b".")?;
    sys::change_directory(&new)?;
    sys::pivot_root(b".", b".")?;
    sys::change_directory(&old)?;
    sys::unmount(b".")
}

fn mount_proc() -> io::Result<()> {
    private()?;
    let flags = sys::MS_NOSUID | sys::MS_NODEV | sys::MS_NOEXEC;
    sys::mount_on(Some(b"proc"), b"/proc", Some(b"proc"), flags, None)
}

fn overlay(scratch: &str, uid: u32, attempt: &dyn Fn(u64, Inside<'_>) -> Value) -> Value {
    let make = || {
        sys::enter_directory(scratch.as_bytes())?;
        for name in ["lower", "upper", "work", "merged"] {
            sys::make_directory(AT_FDCWD, name.as_bytes(), 0o777)?;
            sys::own(AT_FDCWD, name.as_bytes(), Some(uid), None)?;
        }
        Ok(())
    };
    if let Err(error) = make() {
        return failure("make", &error);
    }
    attempt(NAMESPACES, &|| {
        private()?;
        let layers = b"lowerdir=lower,upperdir=upper,workdir=work,userxattr";
        sys::mount_on(Some(b"overlay"), b"merged", Some(b"overlay"), 0, Some(layers))?;
        sys::make_directory(AT_FDCWD, b"merged/made", 0o777)
    })
}

/// A directory that belongs to root on the disk, and inside to root there; with an overlay in it, where it `carries` one.
fn idmapped(scratch: &str, uid: u32, carries: bool) -> Value {
    let tried = || {
        sys::enter_directory(scratch.as_bytes())?;
        sys::make_directory(AT_FDCWD, b"place", 0o700)?;
        for name in ["lower", "upper", "work"] {
            sys::make_directory(AT_FDCWD, format!("place/{name}").as_bytes(), 0o755)?;
        }
        let (gives, takes) = sys::message_pair()?;
        let between = |pid: i32| {
            let seen = seen_by(pid, &[b"place"])?;
            sys::send_message(&gives, b"p", &[seen[0].as_raw_fd()])
        };
        let inside = || {
            private()?;
            let (_, came) = sys::receive_message(&takes, &mut [0; 8])?;
            sys::attach_mount(came.first().ok_or_else(|| io::Error::from_raw_os_error(sys::EINVAL))?, b"merged")?;
            if carries {
                let layers = b"lowerdir=merged/lower,upperdir=merged/upper,workdir=merged/work,userxattr";
                sys::mount_on(Some(b"overlay"), b"merged", Some(b"overlay"), 0, Some(layers))?;
            }
            sys::make_directory(AT_FDCWD, b"merged/made", 0o777)
        };
        let attempt =
            Attempt { namespaces: NAMESPACES, uid: Some(uid), group: None, between: Some(&between), inside: &inside };
        Ok(attempt.make())
    };
    tried().unwrap_or_else(|error: io::Error| failure("make", &error))
}

/// Starting a command in its control group of version 2, from among those of process 1.
fn grouped(groups: &str, uid: u32) -> Value {
    let path = format!("{groups}/aviato-trial-{}", sys::process_id());
    let tried = || {
        sys::make_directory(AT_FDCWD, path.as_bytes(), 0o777)?;
        sys::own(AT_FDCWD, format!("{path}/cgroup.procs").as_bytes(), Some(uid), None)?;
        let open = |place: &str| sys::open_at(AT_FDCWD, place.as_bytes(), sys::O_PATH, 0);
        let (beside, own) = (open(&format!("{groups}/supervisors"))?, open(&path)?);
        let inside = || match sys::clone_into(0, Some(&own))? {
            None => sys::exit_now(0),
            Some(_) => sys::wait_blocking().map(drop),
        };
        let attempt =
            Attempt { namespaces: NAMESPACES, uid: Some(uid), group: Some(&beside), between: None, inside: &inside };
        Ok(attempt.make())
    };
    let found = tried().unwrap_or_else(|error: io::Error| failure("make", &error));
    drop(fs::remove_dir(&path));
    found
}

/// Whether the root of the mount namespace is another mount than our root; of root's processes alone this can be known.
fn leads_out() -> bool {
    let before = root_mount();
    let entered = sys::open_at(AT_FDCWD, b"/proc/self/ns/mnt", sys::O_RDONLY, 0)
        .and_then(|own| sys::enter_namespace(&own, sys::CLONE_NEWNS));
    entered.is_ok() && root_mount() != before
}

/// The id of the mount at this process's root; none where no mount is there.
fn root_mount() -> Option<String> {
    let text = fs::read("/proc/self/mountinfo").ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut fields = text.lines().rev().map(|line| line.split(' '));
    fields.find_map(|mut words| {
        let id = words.next()?.to_owned();
        (words.nth(3) == Some("/")).then_some(id)
    })
}
