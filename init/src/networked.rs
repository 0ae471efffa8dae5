//! Process 1 in a place that only a network reaches, such as a pod: nothing can be handed to it but variables.
//!
//! The first server that proves the key sends the plan. What is around it (the image's environment and directory) it finds.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::carried;
use crate::confine::Failure;
use crate::errors::Variables;
use crate::event_loop::{Call, EventLoop, Timer, Token};
use crate::json::{self, Value};
use crate::keys;
use crate::newcomers::{self, Newcomers, Progress, PATIENCE_SECONDS};
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
const FIRST_SECONDS: f64 = 600.0;
/// So many that have proved the key are heard at once; the oldest goes for a newer one.
const MOST_SERVERS: usize = 16;
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
    let mut newcomers = Newcomers::new(own_port, key);
    let (connection, request) = first(&listener, &mut newcomers, is_pooled).map_err(failed)?;
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
        newcomers: Some(newcomers),
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
fn first(listener: &OwnedFd, newcomers: &mut Newcomers, is_pooled: bool) -> io::Result<(OwnedFd, Value)> {
    let mut looper = EventLoop::new()?;
    looper.watch(listener.as_raw_fd(), sys::EPOLLIN, Token::Listener);
    let mut waits = !is_pooled;
    if waits {
        looper.after(FIRST_SECONDS, Call::LookForServer);
    }
    let mut servers: BTreeMap<u64, (Server, Timer)> = BTreeMap::new();
    let mut count = 0;
    let mut found = Vec::new();
    loop {
        looper.wait(&mut found);
        for event in found.drain(..) {
            match EventLoop::token_of(event) {
                Token::Listener => {
                    if let Ok(socket) = sys::accept(listener) {
                        newcomers.take(socket, &mut looper);
                    }
                }
                Token::Newcomer(number) => {
                    let (progress, socket) = newcomers.hear(number, &mut looper);
                    if matches!(progress, Progress::Proved | Progress::Asked) && !std::mem::replace(&mut waits, true) {
                        // Whoever knows the key asks it of a pod that has been somebody's for long: it is the pool's no more.
                        looper.after(FIRST_SECONDS, Call::LookForServer);
                    }
                    if let Some(socket) = socket {
                        count += 1;
                        looper.watch(socket.as_raw_fd(), sys::EPOLLIN, Token::Server(count));
                        let timer = looper.after(PATIENCE_SECONDS, Call::ServerLate(count));
                        servers.insert(count, (Server { socket, said: Vec::new() }, timer));
                        if servers.len() > MOST_SERVERS {
                            let oldest = servers.keys().next().copied();
                            oldest.into_iter().for_each(|number| drop(gone(&mut servers, number, &mut looper)));
                        }
                    }
                }
                Token::Server(number) => match servers.get_mut(&number).map(|(server, _)| server.hear()) {
                    Some(Ok(Some(plan))) => {
                        let server = gone(&mut servers, number, &mut looper);
                        let server = server.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
                        return Ok((server.socket, plan));
                    }
                    // A server that goes before it has said all of it makes room for the next.
                    Some(Err(_)) => drop(gone(&mut servers, number, &mut looper)),
                    Some(Ok(None)) | None => {}
                },
                _ => {}
            }
        }
        while let Some(call) = looper.due(sys::now()) {
            match call {
                Call::NewcomerLate(number) => drop(newcomers.let_go(number, &mut looper)),
                Call::ServerLate(number) => drop(gone(&mut servers, number, &mut looper)),
                Call::LookForServer => sys::exit_now(ORPHANED),
                _ => {}
            }
        }
    }
}

/// A server is heard no longer.
fn gone(servers: &mut BTreeMap<u64, (Server, Timer)>, number: u64, looper: &mut EventLoop) -> Option<Server> {
    let (server, timer) = servers.remove(&number)?;
    looper.cancel(timer);
    looper.forget(server.socket.as_raw_fd());
    Some(server)
}

/// One that has proved the key, and what has come of its plan: four bytes of its length, and the plan.
struct Server {
    socket: OwnedFd,
    said: Vec<u8>,
}

impl Server {
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
