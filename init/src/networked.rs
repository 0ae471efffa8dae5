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
use crate::keys;
use crate::newcomers::{self, Newcomer, Newcomers, Progress, MOST, PATIENCE_SECONDS};
use crate::supervisor::{Descent, Descriptors, Supervisor, Surroundings};
use crate::sys;
use crate::zygote::{descent_of, say_failed};

const TERMINATION_LOG: &str = "AVIATO_TERMINATION_LOG";
const CLUSTERS_OWN: &[u8] = b"KUBERNETES_";
const MOST_PLAN_BYTES: usize = 1 << 20;
/// Of a plan, which say how long it is.
const HEAD_BYTES: usize = 4;
const PIECE_BYTES: usize = 64 << 10;
/// So long it waits for the first server. In a pool that begins once one has proved the key: until then the pool has it.
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
    let (key, is_pooled) = keys::take()?;
    let log = env::var_os(TERMINATION_LOG)
        .and_then(|path| std::fs::OpenOptions::new().append(true).open(path).map_err(|_| ()).ok());
    let around = surroundings();
    crate::reserve_standard_streams().map_err(failed)?;
    let own_port = port.parse().map_err(|_| format!("{port} is no port"))?;
    let listener = newcomers::listen(own_port).map_err(failed)?;
    sys::never_block(&listener).map_err(failed)?;
    let note = sys::make_memory_file().map_err(failed)?; // Nobody reads it: its exit status says how it ended.
    let (connection, request) = first(&listener, &key, is_pooled);
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
        newcomers: Some(Newcomers::new(own_port, key)),
        around: Some(around),
    };
    sys::ignore_interrupts();
    sys::take_short_turns();
    match Supervisor::new(given) {
        Ok(mut supervisor) => supervisor.run(),
        Err(error) => Err(format!("it could not begin: {error}")),
    }
}

/// What the image says of its commands.
fn surroundings() -> Surroundings {
    let own = [keys::KEY, keys::KEY_FILE, TERMINATION_LOG];
    let environment: Variables = env::vars_os()
        .filter(|(name, _)| {
            !name.as_bytes().starts_with(CLUSTERS_OWN) && !own.iter().any(|one| OsStr::new(one) == name)
        })
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect();
    let directory = env::current_dir().map_or_else(|_| b"/".to_vec(), |path| path.into_os_string().into_vec());
    Surroundings { environment, directory }
}

/// Waits for a server that proves the key and sends a plan; ends where none comes. Nobody is waited for alone.
fn first(listener: &OwnedFd, key: &[u8], is_pooled: bool) -> (OwnedFd, Value) {
    let mut waits_since = if is_pooled { None } else { Some(Instant::now()) };
    let mut waiting: Vec<(Newcomer, Instant)> = Vec::new();
    let mut servers: Vec<Server> = Vec::new();
    while waits_since.map_or(true, |since| since.elapsed() < Duration::from_secs(FIRST_SECONDS)) {
        let fds: Vec<&OwnedFd> = std::iter::once(listener)
            .chain(waiting.iter().map(|(newcomer, _)| &newcomer.socket))
            .chain(servers.iter().map(|server| &server.socket))
            .collect();
        let readable = sys::wait_readable(&fds, 1000);
        let (of_newcomers, of_servers) = readable[1..].split_at(waiting.len());
        for number in (0..servers.len()).rev() {
            let is_late = is_over(servers[number].since);
            match if of_servers[number] { servers[number].hear() } else { Ok(None) } {
                Ok(Some(plan)) => return (servers.swap_remove(number).socket, plan),
                Ok(None) if !is_late => {}
                // A server that goes before it has said all of it, or takes too long, makes room for the next.
                Ok(None) | Err(_) => drop(servers.remove(number)),
            }
        }
        for number in (0..waiting.len()).rev() {
            let progress = match (of_newcomers[number], is_over(waiting[number].1)) {
                (true, _) => waiting[number].0.hear(key, false),
                (false, true) => Progress::Refused,
                (false, false) => Progress::Waits,
            };
            if progress == Progress::Waits {
                continue;
            }
            let (newcomer, _) = waiting.remove(number);
            if progress != Progress::Refused {
                // Whoever knows the key asks it of a pod that has been somebody's for long: it is the pool's no more.
                waits_since.get_or_insert_with(Instant::now);
            }
            if progress == Progress::Proved {
                make_room(&mut servers);
                servers.push(Server::new(newcomer.socket));
            }
        }
        if readable[0] {
            if let Ok(newcomer) = sys::accept(listener).and_then(Newcomer::new) {
                make_room(&mut waiting);
                waiting.push((newcomer, Instant::now()));
            }
        }
    }
    sys::exit_now(ORPHANED)
}

fn is_over(since: Instant) -> bool {
    since.elapsed() > Duration::from_secs_f64(PATIENCE_SECONDS)
}

/// The oldest goes for a newer one.
fn make_room<T>(those: &mut Vec<T>) {
    if those.len() >= MOST {
        those.remove(0);
    }
}

/// One that has proved the key, and what has come of its plan: four bytes of its length, and the plan.
struct Server {
    socket: OwnedFd,
    since: Instant,
    said: Vec<u8>,
}

impl Server {
    fn new(socket: OwnedFd) -> Server {
        Server { socket, since: Instant::now(), said: Vec::new() }
    }

    /// Hears what is there, and none of what comes behind the plan; gives the plan once it is whole.
    ///
    /// # Errors
    /// It has gone, or what it says is no plan.
    fn hear(&mut self) -> io::Result<Option<Value>> {
        loop {
            let missing = match self.said.get(..HEAD_BYTES) {
                None => HEAD_BYTES - self.said.len(),
                Some(head) => HEAD_BYTES + size_in(head)? - self.said.len(),
            };
            if missing == 0 {
                let plan = json::parse(&self.said[HEAD_BYTES..]);
                return plan.map(Some).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why));
            }
            let have = self.said.len();
            self.said.resize(have + missing.min(PIECE_BYTES), 0);
            let count = sys::read_some(&self.socket, &mut self.said[have..]);
            self.said.truncate(have + count.as_ref().map_or(0, |count| *count));
            match count {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if matches!(sys::number_of(&error), sys::EAGAIN | sys::EINTR) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

fn size_in(head: &[u8]) -> io::Result<usize> {
    let size = head.iter().fold(0, |size, byte| size << 8 | usize::from(*byte));
    if size > MOST_PLAN_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(size)
}
