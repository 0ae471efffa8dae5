//! Process 1 where a container engine makes the place: nothing can be handed to it, so it finds what it needs in a directory.
//!
//! The server has put a plan there (`plan.py` of that backend), and reads a pipe by which it is told that it can connect.

use std::io;
use std::os::unix::io::{IntoRawFd, OwnedFd};

use crate::confine::{Confinement, Failure};
use crate::json::{self, Value};
use crate::supervisor::{Descriptors, Supervisor};
use crate::sys::{self, AT_FDCWD, O_CREAT, O_DIRECTORY, O_PATH, O_RDONLY, O_WRONLY};
use crate::zygote::{bind_in, hexadecimal, report};

/// So long somebody may take to connect who was told that he can.
const PATIENCE_MILLISECONDS: i32 = 60_000;
/// What tells of memory that ran out: in version 2 of control groups, and in version 1 with the most that there ever was.
const GROUPS: [&[&[u8]]; 2] = [
    &[b"/sys/fs/cgroup/memory.events"],
    &[b"/sys/fs/cgroup/memory/memory.oom_control", b"/sys/fs/cgroup/memory/memory.max_usage_in_bytes"],
];

/// Is process 1 of what is around it; its place is a directory that only it and the server see.
///
/// # Errors
/// There is no plan, or nobody connects.
pub fn serve(place: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("its place {place}: {error}");
    crate::reserve_standard_streams().map_err(failed)?;
    let place = place.as_bytes();
    let request = plan_in(place).map_err(failed)?.and_then(|text| json::parse(&text))?;
    sys::set_umask(0); // The server may be another user, who comes by a directory that is closed to all others.
    let note = sys::open_at(AT_FDCWD, &crate::paths::join(place, b"note"), O_WRONLY | sys::O_APPEND | O_CREAT, 0o644)
        .and_then(|note| sys::lock(&note).map(|()| note))
        .map_err(failed)?;
    let has = |name: &str| request.get(name) == Some(&Value::Bool(true));
    let ports = if has("ports") { Some(bind_in(place, b"p", true).map_err(failed)?) } else { None };
    let listener = bind_in(place, b"s", false).map_err(failed)?;
    let groups = if has("grouped") { open_groups() } else { Vec::new() };
    let connection = first_connection(place, &listener).map_err(failed)?;
    let spare = sys::duplicate(&connection).map_or(-1, IntoRawFd::into_raw_fd);
    match confined(&request) {
        Err(Failure::Step(why) | Failure::Unfit(why)) => {
            report(spare, &format!("the sandbox could not be confined: {why}"), None)
        }
        Ok((sockets, _)) => {
            if let Ok(spare) = sys::adopt(spare) {
                drop(spare);
            }
            let given = Descriptors {
                connection,
                listener,
                note,
                layer: None,
                sockets: Some(sockets),
                ports,
                groups,
                born_filter: Vec::new(),
                descent: None,
                newcomers: None,
                around: None,
            };
            drop(request);
            sys::ignore_interrupts();
            sys::take_short_turns();
            match Supervisor::new(given) {
                Ok(mut supervisor) => supervisor.run(),
                Err(error) => Err(format!("it could not begin: {error}")),
            }
        }
    }
}

fn plan_in(place: &[u8]) -> io::Result<Result<Vec<u8>, String>> {
    let text = std::fs::read(String::from_utf8_lossy(&crate::paths::join(place, b"plan")).as_ref())?;
    Ok(if text.is_empty() { Err("its plan is empty".to_owned()) } else { Ok(text) })
}

/// Says that the server can connect, and waits for it.
fn first_connection(place: &[u8], listener: &OwnedFd) -> io::Result<OwnedFd> {
    sys::listen_again(listener, 8)?;
    let ready = sys::open_at(AT_FDCWD, &crate::paths::join(place, b"ready"), O_WRONLY | sys::O_NONBLOCK, 0)?;
    sys::write_some(&ready, b"r")?;
    if !sys::wait_readable(&[listener], PATIENCE_MILLISECONDS)[0] {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "no server has connected"));
    }
    sys::accept(listener)
}

/// Those of the whole sandbox, where the engine shows them.
pub fn open_groups() -> Vec<OwnedFd> {
    let open = |path: &&[u8]| sys::open_at(AT_FDCWD, path, O_RDONLY, 0);
    GROUPS.iter().find_map(|paths| paths.iter().map(open).collect::<io::Result<_>>().ok()).unwrap_or_default()
}

/// Takes the steps; gives what tells of sockets, and by what process 1 is asked, if it is.
pub fn confined(request: &Value) -> Result<(OwnedFd, Option<OwnedFd>), Failure> {
    let lacks = |error: io::Error| Failure::Step(error.to_string());
    let root = sys::open_at(AT_FDCWD, b"/", O_PATH | O_DIRECTORY, 0).map_err(lacks)?;
    sys::change_directory(&root).map_err(lacks)?;
    let mut confinement = Confinement::new(root, true, None, hexadecimal(request.get("filter")));
    confinement.execute(request.get("plan").unwrap_or(&Value::Null))?;
    let sockets = confinement.kept(b"sockets").map_err(lacks)?;
    Ok((sockets, confinement.kept(b"asked").ok()))
}
