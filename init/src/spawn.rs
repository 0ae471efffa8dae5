//! Starting a command: its directory, its program, its pipes or terminal.

use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

use crate::accounts::Account;
use crate::errors::Refused;
use crate::paths::{self, open_path, Whose};
use crate::process_tree::Processes;
use crate::subreaper::Subreapers;
use crate::sys::{self, AT_FDCWD, O_NOCTTY, O_RDWR};

pub const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Kept free for process 1 itself: commands get none of the last ones below its limit.
const RESERVED_DESCRIPTORS: u64 = 32;

/// A command that could not be started: a result, not an error.
#[derive(Debug, Clone)]
pub struct Failure {
    pub returncode: i32,
    pub message: Vec<u8>,
    /// Too many processes: it may go once the dead are collected.
    pub for_now: bool,
}

impl Failure {
    pub fn new(returncode: i32, name: &[u8], why: impl AsRef<[u8]>) -> Failure {
        Failure { returncode, message: [name, b": ", why.as_ref()].concat(), for_now: false }
    }
}

/// What a command reads and writes.
#[derive(Clone, Copy)]
pub enum Streams<'a> {
    /// Pipes; without a pipe for stdin it reads what is given, or nothing.
    Pipes { stdin: bool, given: Option<&'a OwnedFd> },
    /// What a program that runs cases is connected by; `reports`: it reports as well.
    Cases { reports: bool },
    /// A new terminal of this width and height.
    Terminal { width: u16, height: u16 },
}

/// Where commands are born.
#[derive(Default)]
pub struct Birthplace {
    /// A control group of version 2.
    pub directory: Option<OwnedFd>,
    /// A filter of system calls that they take beside that of process 1.
    pub filter: Vec<u8>,
    /// Lists of tasks of control groups of version 1.
    pub tasks: Vec<OwnedFd>,
}

/// What commands are started by.
#[derive(Clone, Copy)]
pub struct By<'a> {
    /// An open /dev/null.
    pub null: &'a OwnedFd,
    /// The directory of the sandbox's terminals, if it has any.
    pub terminals: Option<&'a OwnedFd>,
    /// How many descriptors a command may have.
    pub open_files: Option<u64>,
    pub nice: i32,
    pub birth: &'a Birthplace,
    /// Where there are no namespaces.
    pub subreapers: Option<&'a Subreapers>,
    pub processes: &'a Processes,
    /// Who they are, where not root.
    pub account: Option<&'a Account>,
}

/// Our ends of them.
pub struct Ends {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    pub cases: Option<CaseEnds>,
}

impl Ends {
    /// Of a command that has no process.
    pub fn none() -> Ends {
        Ends { stdin: None, stdout: None, stderr: None, cases: None }
    }
}

/// The same of a program that runs cases: also for its records, what it is told, and reports where they were asked for.
pub struct CaseEnds {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub record: OwnedFd,
    pub go: OwnedFd,
    pub report: Option<OwnedFd>,
}

pub struct Spawned {
    pub pid: i32,
    pub ends: Ends,
    /// See `sys::start`; of one that has a subreaper, see `subreaper::heard`.
    pub report: OwnedFd,
    pub subreaper: Option<i32>,
    /// The file that was started.
    pub program: Vec<u8>,
    /// The command's first word.
    pub name: Vec<u8>,
}

/// Makes a directory the current one, for the lookup and for the command; a failure if nothing more can be opened.
///
/// # Errors
/// It is not there, or cannot be entered.
pub fn enter(path: &[u8], name: &[u8]) -> Result<Option<Failure>, Refused> {
    if path.contains(&0) {
        return Err(Refused::file(path, "no_such_file", "embedded null byte"));
    }
    let entered =
        open_path(path, paths::DIRECTORY, AT_FDCWD, Whose::Anybodys).and_then(|fd| sys::change_directory(&fd));
    match entered {
        Ok(()) => Ok(None),
        Err(error) if matches!(sys::number_of(&error), sys::EMFILE | sys::ENFILE) => {
            Ok(Some(failure(name, path, &error)))
        }
        Err(error) => Err(Refused::os(path, &error)),
    }
}

/// The file that a command's first word means, counted from the current directory.
pub fn find_program(name: &[u8], path: &[u8]) -> Result<Vec<u8>, Failure> {
    if name.is_empty() {
        return Err(Failure::new(127, b"''", "command not found"));
    }
    if name.contains(&b'/') {
        return usable(name, name).map(|()| name.to_vec());
    }
    let mut found = Failure::new(127, name, "command not found");
    for folder in path.split(|byte| *byte == b':') {
        let candidate = paths::join(if folder.is_empty() { b"." } else { folder }, name);
        match usable(&candidate, name) {
            Ok(()) => return Ok(candidate),
            Err(failure) if failure.returncode == 126 => found = failure,
            Err(_) => {}
        }
    }
    Err(found)
}

fn usable(candidate: &[u8], name: &[u8]) -> Result<(), Failure> {
    match sys::stat_path(AT_FDCWD, candidate) {
        Err(error) => {
            let number = sys::number_of(&error);
            let code = if matches!(number, sys::EACCES | sys::EPERM) { 126 } else { 127 };
            let why = if candidate.contains(&0) { sys::ENOENT } else { number };
            Err(Failure::new(code, name, sys::describe(why)))
        }
        Ok(found) if found.is_directory() => Err(Failure::new(126, name, "Is a directory")),
        Ok(_) if sys::may_execute(candidate) => Ok(()),
        Ok(_) => Err(Failure::new(126, name, "Permission denied")),
    }
}

/// Starts a command in the current directory.
pub fn spawn(
    command: &[Vec<u8>],
    environment: &[(Vec<u8>, Vec<u8>)],
    streams: Streams<'_>,
    by: By<'_>,
) -> Result<Spawned, Failure> {
    let name: &[u8] = command.first().map_or(b"", Vec::as_slice);
    let path = environment.iter().rev().find(|(own, _)| own == b"PATH").map_or(DEFAULT_PATH, |(_, value)| value);
    let program = find_program(name, path)?;
    let variables: Vec<Vec<u8>> = environment.iter().map(|(own, value)| [own, &b"="[..], value].concat()).collect();
    let stopped = by.processes.is_paused();
    let start = |descriptors: &[RawFd], terminal: Option<&[u8]>| {
        let program = sys::Program {
            path: &program,
            arguments: command,
            environment: &variables,
            descriptors,
            terminal,
            open_files: by.open_files,
            nice: by.nice,
            group: by.birth.directory.as_ref(),
            filter: &by.birth.filter,
            tasks: &by.birth.tasks,
            alone: by.subreapers.is_none() && by.birth.tasks.is_empty() && !stopped && !by.processes.signal_all(0),
            from_deaf: by.subreapers.is_some(),
            user: by.account.map(|account| (account.uid, account.gid, &account.groups[..])),
            stopped,
        };
        match by.subreapers {
            None => sys::start(&program).map(|(pid, report)| Begun { pid, report, subreaper: None }),
            Some(subreapers) => {
                let kept = subreapers.start(&program)?;
                Ok(Begun { pid: kept.pid, report: kept.report, subreaper: Some(kept.subreaper) })
            }
        }
    };
    let uid = by.account.map(|account| account.uid);
    let started = match streams {
        Streams::Pipes { stdin, given } => on_pipes(stdin, given.unwrap_or(by.null), uid, start),
        Streams::Cases { reports } => on_case_pipes(reports, uid, start),
        Streams::Terminal { width, height } => match open_terminal(width, height, by) {
            Ok((master, inner)) => on_terminal(master, &inner, uid, start),
            Err(error) => return Err(no_terminal(name, &error)),
        },
    };
    match started {
        Ok((begun, ends)) => {
            let Begun { pid, report, subreaper } = begun;
            Ok(Spawned { pid, ends, report, subreaper, program, name: name.to_vec() })
        }
        Err(error) => Err(failure(name, &program, &error)),
    }
}

/// A process that was started.
struct Begun {
    pid: i32,
    report: OwnedFd,
    subreaper: Option<i32>,
}

type Started = (Begun, Ends);

fn on_pipes(
    stdin: bool,
    null: &OwnedFd,
    uid: Option<u32>,
    start: impl Fn(&[RawFd], Option<&[u8]>) -> io::Result<Begun>,
) -> io::Result<Started> {
    let (out_read, out_write) = sys::make_pipe()?;
    let (err_read, err_write) = sys::make_pipe()?;
    let (in_read, in_write) =
        if stdin { sys::make_pipe().map(|(read, write)| (Some(read), Some(write)))? } else { (None, None) };
    give([Some(&out_write), Some(&err_write), in_read.as_ref()].into_iter().flatten(), uid)?;
    let given = in_read.as_ref().unwrap_or(null).as_raw_fd();
    let begun = within_room(start(&[given, out_write.as_raw_fd(), err_write.as_raw_fd()], None))?;
    for fd in [Some(&out_read), Some(&err_read), in_write.as_ref()].into_iter().flatten() {
        sys::never_block(fd)?;
    }
    Ok((begun, Ends { stdin: in_write, stdout: Some(out_read), stderr: Some(err_read), cases: None }))
}

fn on_case_pipes(
    reports: bool,
    uid: Option<u32>,
    start: impl Fn(&[RawFd], Option<&[u8]>) -> io::Result<Begun>,
) -> io::Result<Started> {
    let (in_read, in_write) = sys::make_pipe()?;
    let (go_read, go_write) = sys::make_pipe()?;
    let (out_read, out_write) = sys::make_pipe()?;
    let (err_read, err_write) = sys::make_pipe()?;
    let (record_read, record_write) = sys::make_pipe()?;
    let (report_read, report_write) =
        if reports { sys::make_pipe().map(|(read, write)| (Some(read), Some(write)))? } else { (None, None) };
    give([&in_read, &out_write, &err_write].into_iter(), uid)?;
    let mut given: Vec<RawFd> =
        [&in_read, &out_write, &err_write, &record_write, &go_read].iter().map(|fd| fd.as_raw_fd()).collect();
    given.extend(report_write.as_ref().map(AsRawFd::as_raw_fd));
    let begun = within_room(start(&given, None))?;
    for fd in [&in_write, &out_read, &err_read, &record_read, &go_write].into_iter().chain(report_read.as_ref()) {
        sys::never_block(fd)?;
    }
    let cases = CaseEnds { stdout: out_read, stderr: err_read, record: record_read, go: go_write, report: report_read };
    Ok((begun, Ends { stdin: Some(in_write), stdout: None, stderr: None, cases: Some(cases) }))
}

/// Process 1 is the only one that has the outer side of a terminal, and never has the inner one open: it would be told the end of
/// it too late, and it must not take it for its own. The command leads a new session, and the first terminal that such a one
/// opens is its controlling terminal.
fn on_terminal(
    master: OwnedFd,
    inner: &[u8],
    uid: Option<u32>,
    start: impl Fn(&[RawFd], Option<&[u8]>) -> io::Result<Begun>,
) -> io::Result<Started> {
    let typed = sys::duplicate(&master)?;
    if uid.is_some() {
        sys::own(AT_FDCWD, inner, uid, None)?;
    }
    let begun = within_room(start(&[], Some(inner)))?;
    sys::never_block(&master)?;
    Ok((begun, Ends { stdin: Some(typed), stdout: Some(master), stderr: None, cases: None }))
}

/// A new terminal, and the path of its inner side.
fn open_terminal(width: u16, height: u16, by: By<'_>) -> io::Result<(OwnedFd, Vec<u8>)> {
    let directory = by.terminals.ok_or_else(|| io::Error::from_raw_os_error(sys::ENODEV))?.as_raw_fd();
    let master = if by.subreapers.is_some() {
        // The machine's own directory of terminals has no door; theirs is beside it.
        sys::open_at(AT_FDCWD, b"/dev/ptmx", O_RDWR | O_NOCTTY, 0)?
    } else {
        sys::open_at(directory, b"ptmx", O_RDWR | O_NOCTTY, 0)?
    };
    let number = sys::unlock_terminal(&master, width, height)?;
    Ok((master, format!("/proc/self/fd/{directory}/{number}").into_bytes()))
}

/// Lets a user open pipes again by their names in /proc, as `/dev/stdout`.
fn give<'a>(mut pipes: impl Iterator<Item = &'a OwnedFd>, uid: Option<u32>) -> io::Result<()> {
    match uid {
        Some(uid) => pipes.try_for_each(|fd| sys::give(fd, uid)),
        None => Ok(()),
    }
}

/// The last of the descriptors below the limit are process 1's.
fn within_room(started: io::Result<Begun>) -> io::Result<Begun> {
    let begun = started?;
    let limit = sys::most_open_files();
    if limit != sys::NO_LIMIT && begun.report.as_raw_fd() as u64 >= limit.saturating_sub(RESERVED_DESCRIPTORS) {
        drop(sys::send_signal(begun.pid, sys::SIGKILL));
        return Err(io::Error::from_raw_os_error(sys::EMFILE));
    }
    Ok(begun)
}

fn no_terminal(name: &[u8], error: &io::Error) -> Failure {
    let number = sys::number_of(error);
    if matches!(number, sys::EMFILE | sys::ENFILE) {
        return failure(name, b"", error);
    }
    let why = if number == sys::ENOSPC {
        "all terminals of the sandbox are in use".to_owned()
    } else {
        format!("no terminal: {}", sys::describe(number))
    };
    Failure::new(126, name, format!("not started: {why}"))
}

/// A program that was found and could not be started.
pub fn failure(name: &[u8], program: &[u8], error: &io::Error) -> Failure {
    match sys::number_of(error) {
        sys::ENOENT => {
            Failure::new(127, name, [b"its interpreter is missing: ", &interpreter_of(program)[..]].concat())
        }
        sys::EAGAIN => {
            let limit = sys::most_processes();
            let why = format!("not started: the sandbox's limit of {} processes is reached", limit.saturating_sub(1));
            Failure { for_now: true, ..Failure::new(126, name, why) }
        }
        sys::EMFILE | sys::ENFILE => {
            let limit = sys::most_open_files();
            Failure::new(126, name, format!("not started: the sandbox's limit of {limit} open files is reached"))
        }
        0 => Failure::new(126, name, error.to_string()),
        number => Failure::new(126, name, sys::describe(number)),
    }
}

/// What a script names, or the loader of a program.
fn interpreter_of(program: &[u8]) -> Vec<u8> {
    let mut begin = [0; 256];
    let read = sys::open_at(AT_FDCWD, program, sys::O_RDONLY | sys::O_NONBLOCK, 0)
        .and_then(|fd| sys::read_some(&fd, &mut begin));
    let count = match read {
        Ok(count) => count,
        Err(_) => return program.to_vec(),
    };
    match begin[..count].strip_prefix(b"#!") {
        None => [b"the loader of ", program].concat(),
        Some(rest) => {
            let line = rest.split(|byte| *byte == b'\n').next().unwrap_or(rest);
            String::from_utf8_lossy(line).trim().as_bytes().to_vec()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        let code = |name: &str, path: &str| {
            find_program(name.as_bytes(), path.as_bytes()).map_err(|failure| failure.returncode)
        };
        assert_eq!(code("sh", "/nowhere:/bin"), Ok(b"/bin/sh".to_vec()));
        assert_eq!(code("/bin/sh", ""), Ok(b"/bin/sh".to_vec()));
        for (name, path, expected) in [
            ("sh", "/nowhere", 127),
            ("", "/bin", 127),
            ("passwd", "/etc", 126),
            ("/etc", "", 126),
            ("/nowhere", "", 127),
            ("a\0b", "/bin", 127),
        ] {
            assert_eq!(code(name, path), Err(expected), "{name:?}");
        }
    }

    #[test]
    fn who_cannot_become_the_program_says_why() {
        let script = std::env::temp_dir().join(format!("aviato-spawn-{}", std::process::id()));
        std::fs::write(&script, "#!/nowhere/at/all -x\n").unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let null = sys::open_at(AT_FDCWD, b"/dev/null", O_RDWR, 0).unwrap();
        let command = [script.to_str().unwrap().as_bytes().to_vec()];
        let birth = Birthplace::default();
        let processes = Processes::new().unwrap();
        let by = By {
            null: &null,
            terminals: None,
            open_files: None,
            nice: 0,
            birth: &birth,
            subreapers: None,
            processes: &processes,
            account: None,
        };
        let spawned = spawn(&command, &[], Streams::Pipes { stdin: false, given: None }, by).unwrap();
        let mut number = [0; 4];
        sys::wait_readable(&[&spawned.report], 10_000);
        assert_eq!(sys::read_some(&spawned.report, &mut number).unwrap(), 4);
        let error = io::Error::from_raw_os_error(i32::from_ne_bytes(number));
        let failure = failure(b"x", &spawned.program, &error);
        assert_eq!(
            (failure.returncode, &failure.message[..]),
            (127, &b"x: its interpreter is missing: /nowhere/at/all -x"[..])
        );
        std::fs::remove_file(script).unwrap();
    }
}
