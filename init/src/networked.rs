//! Process 1 in a place that only a network reaches, such as a pod: nothing can be handed to it but variables.
//!
//! The first server that proves the key sends the plan. What is around it (the image's environment and directory) it finds.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::io::OwnedFd;
use std::time::{Duration, Instant};

use crate::carried;
use crate::confine::Failure;
use crate::errors::Variables;
use crate::json::{self, Value};
use crate::newcomers::{self, Newcomer, Newcomers, Progress, MOST, PATIENCE_SECONDS};
use crate::supervisor::{Descent, Descriptors, Supervisor, Surroundings};
use crate::sys;
use crate::zygote::{descent_of, hexadecimal, say_failed};

const KEY: &str = "AVIATO_KEY";
const TERMINATION_LOG: &str = "AVIATO_TERMINATION_LOG";
const KEY_BYTES: usize = 32;
const CLUSTERS_OWN: &[u8] = b"KUBERNETES_";
const MOST_PLAN_BYTES: usize = 1 << 20;
/// So long it waits for the first server.
const FIRST_SECONDS: u64 = 600;
/// With it process 1 ends where no server came.
pub const ORPHANED: i32 = 83;
/// With it process 1 ends where its plan failed.
const FAILED: i32 = 85;

/// Is process 1 of what is around it.
///
/// # Errors
/// It has no key, or its port is taken.
pub fn serve(port: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("port {port}: {error}");
    sys::control(sys::PR_SET_DUMPABLE, 0).map_err(failed)?; // First: nobody inside reads the key.
    let key = key_in(env::var_os(KEY).map(OsStringExt::into_vec));
    sys::overwrite_variable(KEY.as_bytes());
    let key = key.ok_or_else(|| format!("{KEY} has to be {KEY_BYTES} bytes in hexadecimal digits"))?;
    let log = env::var_os(TERMINATION_LOG)
        .and_then(|path| std::fs::OpenOptions::new().append(true).open(path).map_err(|_| ()).ok());
    let around = surroundings();
    crate::reserve_standard_streams().map_err(failed)?;
    let listener = newcomers::listen(port.parse().map_err(|_| format!("{port} is no port"))?).map_err(failed)?;
    sys::never_block(&listener).map_err(failed)?;
    let note = sys::make_memory_file().map_err(failed)?; // Nobody reads it: its exit status says how it ended.
    let (connection, request) = first(&listener, &key);
    let grouped = request.get("grouped") == Some(&Value::Bool(true));
    let groups = if grouped { carried::open_groups() } else { Vec::new() };
    let (sockets, asked) = match carried::confined(&request) {
        Ok(kept) => kept,
        Err(why) => {
            let (Failure::Step(why) | Failure::Unfit(why)) = why;
            let why = format!("the sandbox could not be confined: {why}");
            if let Some(mut log) = log {
                drop(writeln!(log, "{why}"));
            }
            say_failed(&connection, &why, None);
            eprintln!("{why}");
            sys::exit_now(FAILED);
        }
    };
    let descent = request.get("descent").map(|descent| {
        let (filter, exact, second) = descent_of(descent);
        Descent { filter, exact, asked: asked.zip(second) }
    });
    drop((request, log));
    let given = Descriptors {
        connection,
        listener,
        note,
        layer: None,
        sockets: Some(sockets),
        ports: None,
        groups,
        born_filter: Vec::new(),
        descent,
        newcomers: Some(Newcomers::new(key)),
        around: Some(around),
    };
    sys::ignore_interrupts();
    sys::take_short_turns();
    match Supervisor::new(given) {
        Ok(mut supervisor) => supervisor.run(),
        Err(error) => Err(format!("it could not begin: {error}")),
    }
}

/// Nothing but a key: what is read for less than it says could be guessed.
fn key_in(text: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let text = text.filter(|text| text.len() == 2 * KEY_BYTES && text.iter().all(u8::is_ascii_hexdigit))?;
    Some(hexadecimal(Some(&Value::Text(text))))
}

/// What the image says of its commands.
fn surroundings() -> Surroundings {
    let own = [KEY, TERMINATION_LOG];
    let environment: Variables = env::vars_os()
        .filter(|(name, _)| {
            !name.as_bytes().starts_with(CLUSTERS_OWN) && !own.iter().any(|one| OsStr::new(one) == name)
        })
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect();
    let directory = env::current_dir().map_or_else(|_| b"/".to_vec(), |path| path.into_os_string().into_vec());
    Surroundings { environment, directory }
}

/// Waits for a server that proves the key and sends a plan; ends where none comes.
fn first(listener: &OwnedFd, key: &[u8]) -> (OwnedFd, Value) {
    let begun = Instant::now();
    let mut waiting: Vec<(Newcomer, Instant)> = Vec::new();
    while begun.elapsed() < Duration::from_secs(FIRST_SECONDS) {
        let fds: Vec<&OwnedFd> =
            std::iter::once(listener).chain(waiting.iter().map(|(newcomer, _)| &newcomer.socket)).collect();
        let readable = sys::wait_readable(&fds, 1000);
        for number in (0..waiting.len()).rev() {
            let late = waiting[number].1.elapsed() > Duration::from_secs_f64(PATIENCE_SECONDS);
            let progress = match (readable[number + 1], late) {
                (true, _) => waiting[number].0.hear(key, false),
                (false, true) => Progress::Refused,
                (false, false) => Progress::Waits,
            };
            if progress == Progress::Waits {
                continue;
            }
            let (newcomer, _) = waiting.remove(number);
            if progress == Progress::Proved {
                // A server that goes before it has said all of it makes room for the next.
                if let Ok(plan) = read_plan(&newcomer.socket) {
                    return (newcomer.socket, plan);
                }
            }
        }
        if readable[0] {
            if let Ok(newcomer) = sys::accept(listener).and_then(Newcomer::new) {
                if waiting.len() >= MOST {
                    waiting.remove(0);
                }
                waiting.push((newcomer, Instant::now()));
            }
        }
    }
    sys::exit_now(ORPHANED)
}

fn read_plan(socket: &OwnedFd) -> io::Result<Value> {
    let head = read_whole(socket, 4)?;
    let size = head.iter().fold(0, |size, byte| size << 8 | usize::from(*byte));
    if size > MOST_PLAN_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    json::parse(&read_whole(socket, size)?).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
}

/// So many bytes, and none that come behind them.
fn read_whole(socket: &OwnedFd, size: usize) -> io::Result<Vec<u8>> {
    let mut found = vec![0; size];
    let mut have = 0;
    while have < size {
        if !sys::wait_readable(&[socket], (PATIENCE_SECONDS * 1000.0) as i32)[0] {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match sys::read_some(socket, &mut found[have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => have += count,
            Err(error) if matches!(sys::number_of(&error), sys::EAGAIN | sys::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_all_of_its_digits() {
        assert_eq!(key_in(Some(b"0aF1".repeat(16))), Some([0x0a, 0xf1].repeat(16)));
        for wrong in
            [b"0".repeat(63), b"0".repeat(65), b"0g".repeat(32), b"".to_vec(), [&b"0".repeat(63)[..], b"\n"].concat()]
        {
            assert_eq!(key_in(Some(wrong)), None);
        }
        assert_eq!(key_in(None), None);
    }
}
