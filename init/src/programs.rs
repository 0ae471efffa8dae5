//! A command whose cases are programs, one after the other, each a process of its own.
//!
//! What tells how a case ended is what this process sees: the status of its process, the clock, and the bytes in its pipes. A case
//! begins when all of its share of the input is there and its reader has taken enough of the verdicts before it. Until then neither
//! its own clock runs nor that of the whole command: how fast bytes come and go is nothing that a program could help.

use std::collections::VecDeque;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::base64;
use crate::command::Command;
use crate::errors::{Fields, Refused};
use crate::event_loop::{Call, EventLoop, Timer, Token};
use crate::input::{Answers, Asker, MOST_BYTES};
use crate::json::{object, Value};
use crate::paths::reopen;
use crate::spawn::{Ends, Failure};
use crate::successive::{Next, Series};
use crate::sys::{self, Status, Usage, O_RDONLY};

/// What is kept of a program's stderr; who asks for programs reckons with that.
const STDERR_BYTES: usize = 64 << 10;
/// Once a program has ended, what it has left may print on, as `subprocess.run` reads on until all writers have closed. When nothing
/// has come for so long, a writer is taken for one that only has the pipe open: a daemon must not hold each case up for as long as it
/// may take.
const QUIET_SECONDS: f64 = 0.5;
/// So long at most they may print on where the case has no limit of its own.
const MOST_QUIET_SECONDS: f64 = 2.0;
/// How such a command ends where the input of the next program cannot be kept.
const NO_INPUT_CODE: i32 = 126;
/// Without a sign of those who give input and take verdicts for so long, a command that has a limit is over.
const STARVED_SECONDS: f64 = 60.0;
const READ_BYTES: usize = 64 << 10;
const PIPE_BYTES: usize = 1 << 20;

struct Program {
    command: Vec<Vec<u8>>,
    input_bytes: u64,
    output_bytes: usize,
    /// Nobody has to run what comes after it unless it ends with 0.
    required: bool,
}

/// One stream of a program: its beginning is kept, and all of it is counted.
struct Printed {
    fd: Option<OwnedFd>,
    kept: Vec<u8>,
    most: usize,
    total: u64,
    heard: f64,
}

impl Printed {
    fn new(fd: Option<OwnedFd>, most: usize, token: Token, looper: &mut EventLoop) -> Printed {
        if let Some(fd) = &fd {
            looper.watch(fd.as_raw_fd(), sys::EPOLLIN, token);
        }
        Printed { fd, kept: Vec::new(), most, total: 0, heard: 0.0 }
    }

    fn read(&mut self, looper: &mut EventLoop) -> bool {
        let fd = match &self.fd {
            Some(fd) => fd,
            None => return false,
        };
        let mut buffer = vec![0; (sys::unread_bytes(fd).max(1) as usize).min(READ_BYTES)];
        match sys::read_some(fd, &mut buffer) {
            Ok(count) if count > 0 => {
                if self.total == 0 && count >= READ_BYTES / 4 {
                    sys::widen_pipe(fd, PIPE_BYTES);
                }
                self.total += count as u64;
                self.heard = looper.now();
                let room = self.most.saturating_sub(self.kept.len()).min(count);
                self.kept.extend_from_slice(&buffer[..room]);
                true
            }
            Err(error) if sys::number_of(&error) == sys::EAGAIN => false,
            _ => {
                looper.forget(fd.as_raw_fd());
                self.fd = None;
                false
            }
        }
    }

    /// Reads what is there; somebody left behind may write for ever.
    fn catch_up(&mut self, looper: &mut EventLoop) {
        if let Some(fd) = &self.fd {
            let target = self.total + sys::unread_bytes(fd);
            while self.read(looper) && self.total < target {}
        }
    }

    /// Reads no more; whoever can still write neither blocks nor dies of that.
    fn release(&mut self, looper: &mut EventLoop) -> Option<OwnedFd> {
        let fd = self.fd.take();
        if let Some(fd) = &fd {
            looper.forget(fd.as_raw_fd());
        }
        fd
    }
}

/// What has come of all input: one share in a file in memory, and a little of those after it.
///
/// The files belong to this process, outside the limits of what runs inside. So there is one at a time: it is let go of here as soon
/// as its program has it, and those who write wait until it is the turn of the next share.
struct Shares {
    accepted: u64,
    sizes: Vec<u64>,
    total: u64,
    /// Of the share that is being taken.
    missing: u64,
    file: Option<OwnedFd>,
    error: Option<io::Error>,
    ahead: Vec<u8>,
    closed: bool,
    waiting: VecDeque<(u64, Vec<u8>, Asker)>,
    /// Device and number of the file that a program was given last.
    given: Option<(u64, u64)>,
}

impl Shares {
    fn new(sizes: Vec<u64>) -> Shares {
        let total = sizes.iter().sum();
        Shares {
            accepted: 0,
            sizes,
            total,
            missing: 0,
            file: None,
            error: None,
            ahead: Vec::new(),
            closed: false,
            waiting: VecDeque::new(),
            given: None,
        }
    }

    /// Whether all of the share has come that was begun last.
    fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Takes this share; those before it were taken.
    fn begin(&mut self, index: usize) -> Answers {
        self.missing = self.sizes.get(index).copied().unwrap_or(0);
        self.error = None;
        match sys::make_memory_file() {
            Ok(file) => self.file = Some(file),
            Err(error) => self.error = Some(error),
        }
        let ahead = std::mem::take(&mut self.ahead);
        self.take(&ahead);
        self.admit()
    }

    /// The share, which is whole, for its program alone: read only, from its beginning.
    fn open(&mut self) -> io::Result<OwnedFd> {
        let file = self.file.take();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let file = file.ok_or_else(|| io::Error::from_raw_os_error(sys::EINVAL))?;
        sys::set_mode(&file, 0o444)?;
        sys::seal(&file)?;
        let found = sys::stat_open(&file)?;
        self.given = Some((found.device, found.inode));
        reopen(&file, O_RDONLY)
    }

    fn write(&mut self, offset: u64, data: Vec<u8>, asker: Asker) -> Answers {
        self.waiting.push_back((offset, data, asker));
        self.admit()
    }

    /// No program follows.
    fn close(&mut self) -> Answers {
        self.closed = true;
        self.file = None;
        self.ahead = Vec::new();
        self.admit()
    }

    fn admit(&mut self) -> Answers {
        let mut answers = Answers::new();
        while let Some((offset, data, _)) = self.waiting.front() {
            let known = self.accepted.saturating_sub(*offset).min(data.len() as u64) as usize;
            let fresh = data[known..].to_vec();
            let size = fresh.len() as u64;
            let mut problem = None;
            if *offset > self.accepted && !self.closed {
                let message = format!("stdin: offset {offset} leaves a gap after {}", self.accepted);
                problem = Some(Refused::invalid(message));
            } else if size > 0 && (self.closed || self.accepted + size > self.total) {
                let message = "stdin is longer than what its programs read";
                problem = Some(Refused::new("EXECUTION", "stdin_closed", message));
            } else if size > 0
                && self.missing == 0
                && !self.ahead.is_empty()
                && self.ahead.len() + fresh.len() > MOST_BYTES
            {
                return answers;
            } else {
                self.accepted += size;
                self.take(&fresh);
            }
            if let Some((_, _, asker)) = self.waiting.pop_front() {
                answers.push((asker, problem));
            }
        }
        answers
    }

    fn take(&mut self, data: &[u8]) {
        let (mine, rest) = data.split_at(self.missing.min(data.len() as u64) as usize);
        self.missing -= mine.len() as u64;
        self.ahead.extend_from_slice(rest);
        if let Some(file) = self.file.as_ref().filter(|_| self.error.is_none()) {
            if let Err(error) = sys::write_all(file, mine) {
                self.error = Some(error);
            }
        }
    }
}

/// What runs the programs of a command.
pub struct Programs {
    pub series: Series,
    programs: Vec<Program>,
    shares: Shares,
    printed: Option<[Printed; 2]>,
    /// Of the process of this case, once it is gone.
    ended: Option<Status>,
    since: f64,
    seconds: f64,
    late: bool,
    clock: Option<Timer>,
    /// The next case waits for its input, or for room.
    held: bool,
    /// When there was a sign of those whom it waits for.
    heard: f64,
    /// Of the limit of all of it, while that stands still.
    left: Option<f64>,
    /// Until when writers that a program has left may print on.
    quiet: Option<(f64, f64)>,
    /// Whether any program could be started.
    any_born: bool,
}

impl Programs {
    /// From what a command's `cases` say.
    pub fn read(value: &Value) -> Result<Programs, Refused> {
        let list = match Fields(value).value("programs")? {
            Value::Array(list) => list,
            _ => return Err(Refused::invalid("a malformed request: \"programs\"")),
        };
        let programs = list
            .iter()
            .map(|one| {
                let fields = Fields(one);
                Ok(Program {
                    command: fields.texts("command")?,
                    input_bytes: fields.size("input_bytes")?,
                    output_bytes: fields.size("output_bytes")? as usize,
                    required: fields.flag("required")?,
                })
            })
            .collect::<Result<Vec<_>, Refused>>()?;
        let shares = Shares::new(programs.iter().map(|program| program.input_bytes).collect());
        let series = Series::read(value)?;
        if programs.is_empty() || series.len() != programs.len() {
            return Err(Refused::invalid("a malformed request: \"programs\""));
        }
        Ok(Programs {
            series,
            programs,
            shares,
            printed: None,
            ended: None,
            since: 0.0,
            seconds: 0.0,
            late: false,
            clock: None,
            held: false,
            heard: 0.0,
            left: None,
            quiet: None,
            any_born: false,
        })
    }

    /// What the next process is started as.
    pub fn next_command(&self) -> Vec<Vec<u8>> {
        self.programs.get(self.series.done).map(|program| program.command.clone()).unwrap_or_default()
    }

    /// It is on record; its first process follows.
    pub fn begin(&mut self) -> Answers {
        self.shares.begin(0)
    }

    /// Whether it is over if its process is not there: nothing of it waits.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Device and number of the file that a program was given last.
    pub fn input_file(&self) -> Option<(u64, u64)> {
        self.shares.given
    }

    // -- its input and its limit ------------------------------------------------------------------------------------------

    pub fn write(&mut self, offset: u64, data: Vec<u8>, asker: Asker, looper: &EventLoop) -> Answers {
        self.heard = looper.now();
        self.shares.write(offset, data, asker)
    }

    pub fn close_input(&mut self) -> Answers {
        self.shares.close()
    }

    /// How many bytes of input were taken.
    pub fn accepted(&self) -> u64 {
        self.shares.accepted
    }

    /// Starts the clock of all of it. It stands still while a case waits for what comes from outside.
    pub fn limit(&mut self, seconds: Option<f64>, command: &mut Command, looper: &mut EventLoop) {
        match seconds {
            Some(seconds) if !self.held => {
                command.limit = Some(looper.limit(seconds, Call::TooLate(command.number)));
            }
            other => self.left = other,
        }
    }

    /// Whether the next process may begin. Where it may not, the limit of all of it stands still.
    pub fn may_begin(&mut self, command: &mut Command, looper: &mut EventLoop) -> bool {
        self.held = command.outputs[0].is_full() || !self.shares.is_whole();
        if self.held {
            if let Some(timer) = command.limit.take() {
                self.heard = looper.now();
                self.left = Some((looper.due_of(timer).unwrap_or(self.heard) - self.heard).max(0.0));
                looper.cancel(timer);
                command.limit = Some(looper.after(STARVED_SECONDS, Call::Starved(command.number)));
            }
        }
        !self.held
    }

    /// Whether the case that is held may begin; its clock runs on then.
    pub fn go_on(&mut self, command: &mut Command, looper: &mut EventLoop) -> bool {
        if !self.held || !self.shares.is_whole() || command.outputs[0].is_full() {
            return false;
        }
        self.held = false;
        if let Some(left) = self.left.take() {
            if let Some(timer) = command.limit.take() {
                looper.cancel(timer);
            }
            self.limit(Some(left), command, looper);
        }
        true
    }

    /// The server has taken some verdicts.
    pub fn confirmed(&mut self, looper: &EventLoop) {
        self.heard = looper.now();
    }

    /// Whether there has been no sign for too long of those whom it waits for.
    pub fn is_starved(&mut self, command: &mut Command, looper: &mut EventLoop) -> bool {
        let left = self.heard + STARVED_SECONDS - looper.now();
        if left > 0.0 {
            command.limit = Some(looper.after(left, Call::Starved(command.number)));
        }
        left <= 0.0
    }

    // -- a process --------------------------------------------------------------------------------------------------------

    /// What the next process reads; where it cannot be had, that is said.
    pub fn open_input(&mut self, command: &mut Command) -> Option<OwnedFd> {
        match self.shares.open() {
            Ok(file) => Some(file),
            Err(error) => {
                self.series.status = Status::Exited(NO_INPUT_CODE);
                let size = self.programs.get(self.series.done).map_or(0, |program| program.input_bytes);
                let why = sys::describe(sys::number_of(&error));
                command.say(format!("aviato: no room for the {size} bytes of its input: {why}").as_bytes());
                None
            }
        }
    }

    /// The process of a case runs.
    pub fn started(&mut self, ends: Ends, command: &mut Command, looper: &mut EventLoop) {
        command.oom_killed = false;
        let most = self.programs.get(self.series.done).map_or(0, |program| program.output_bytes);
        let number = command.number;
        self.printed = Some([
            Printed::new(ends.stdout, most, Token::Case(number, 0), looper),
            Printed::new(ends.stderr, STDERR_BYTES, Token::Case(number, 1), looper),
        ]);
        self.since = looper.now();
        self.late = false;
        self.ended = None;
        self.quiet = None;
        self.clock = self.series.limit().map(|seconds| looper.limit(seconds, Call::CaseLate(number)));
    }

    /// Something has come by one of its pipes.
    pub fn happened(&mut self, which: usize, command: &mut Command, looper: &mut EventLoop) -> Next {
        if let Some(printed) = &mut self.printed {
            printed[which & 1].read(looper);
        }
        self.look_at_pipes(command, looper)
    }

    /// The time of a case is over, or it is time to look whether those that it has left are quiet.
    pub fn too_late(&mut self, command: &mut Command, looper: &mut EventLoop) -> Next {
        self.clock = None;
        if self.quiet.is_some() {
            return self.wait_for_writers(command, looper);
        }
        self.late = true;
        command.signal(sys::SIGKILL);
        Next::Wait
    }

    /// The process of a case is gone: its verdict comes when its pipes are empty.
    pub fn reaped(&mut self, status: Status, usage: Usage, command: &mut Command, looper: &mut EventLoop) -> Next {
        let now = looper.now();
        self.any_born = true;
        self.seconds = now - self.since;
        self.stop_clock(looper);
        self.series.add_usage(status, usage);
        self.ended = Some(status);
        for one in self.printed.iter_mut().flatten() {
            one.catch_up(looper);
        }
        match self.look_at_pipes(command, looper) {
            Next::Wait => {
                let until = self.series.limit().map_or(now + MOST_QUIET_SECONDS, |limit| self.since + limit);
                self.quiet = Some((now, until));
                self.wait_for_writers(command, looper)
            }
            next => next,
        }
    }

    /// The program of a case could not be started: that is its verdict, and the end where it is the first.
    pub fn not_started(&mut self, failure: &Failure, command: &mut Command, looper: &mut EventLoop) -> Next {
        self.close(command, looper);
        self.printed = None;
        if !self.any_born {
            command.say(&failure.message);
            self.series.status = Status::Exited(failure.returncode);
            return Next::Over;
        }
        let verdict = self.verdict(failure.returncode, None, b"", &[&failure.message[..], b"\n"].concat());
        let verdict = verdict.with([("started", false.into())]);
        self.next(&verdict, failure.returncode, command)
    }

    /// Ends the case at a time, or as soon as nothing has come for long.
    fn wait_for_writers(&mut self, command: &mut Command, looper: &mut EventLoop) -> Next {
        let (since, until) = match self.quiet {
            Some(quiet) => quiet,
            None => return Next::Wait,
        };
        let heard = self.printed.iter().flatten().fold(since, |heard, one| heard.max(one.heard));
        let left = (heard + QUIET_SECONDS).min(until) - looper.now();
        if left <= 0.0 || self.late || self.is_given_up(command) {
            return self.over(command, looper);
        }
        self.clock = Some(looper.after(left, Call::CaseLate(command.number)));
        Next::Wait
    }

    /// Whether it is gone and nobody can print any more.
    fn look_at_pipes(&mut self, command: &mut Command, looper: &mut EventLoop) -> Next {
        let is_empty = self.printed.iter().flatten().all(|one| one.fd.is_none());
        if self.ended.is_some() && self.printed.is_some() && is_empty {
            return self.over(command, looper);
        }
        Next::Wait
    }

    /// Whether somebody has ended it. A case over the limit of memory is no end of those after it.
    pub fn is_given_up(&self, command: &Command) -> bool {
        command.silenced || command.timed_out || command.cancelled || command.last_words.is_some()
    }

    fn over(&mut self, command: &mut Command, looper: &mut EventLoop) -> Next {
        let status = match self.ended.take() {
            Some(status) => status,
            None => return Next::Wait,
        };
        self.stop_clock(looper);
        self.quiet = None;
        let mut texts = Vec::new();
        let mut totals = Vec::new();
        for one in self.printed.iter_mut().flatten() {
            one.catch_up(looper);
            command.left.extend(one.release(looper));
            texts.push(std::mem::take(&mut one.kept));
            totals.push(one.total);
        }
        let by = match status {
            Status::Killed(signal) => Some(signal),
            _ => None,
        };
        // A case over the limit of memory is no end of those after it.
        let oom_killed = std::mem::take(&mut command.oom_killed);
        let is_killed = self.late || oom_killed;
        let code = if is_killed { 128 + sys::SIGKILL } else { status.code() };
        let by = if is_killed { Some(sys::SIGKILL) } else { by };
        let empty = Vec::new();
        let verdict = self.verdict(code, by, texts.first().unwrap_or(&empty), texts.get(1).unwrap_or(&empty)).with([
            ("stdout_bytes_total", totals.first().copied().unwrap_or(0).into()),
            ("stderr_bytes_total", totals.get(1).copied().unwrap_or(0).into()),
            ("duration_seconds", ((self.seconds * 1e6).round() / 1e6).into()),
            ("oom_killed", oom_killed.into()),
            ("timed_out", self.late.into()),
        ]);
        self.next(&verdict, code, command)
    }

    fn verdict(&self, returncode: i32, by: Option<i32>, out: &[u8], err: &[u8]) -> Value {
        object([
            ("started", true.into()),
            ("returncode", returncode.into()),
            ("signal", by.into()),
            ("timed_out", false.into()),
            ("oom_killed", false.into()),
            ("duration_seconds", 0.0.into()),
            ("stdout", Value::Text(base64::encode(out))),
            ("stderr", Value::Text(base64::encode(err))),
            ("stdout_bytes_total", (out.len() as u64).into()),
            ("stderr_bytes_total", (err.len() as u64).into()),
        ])
    }

    /// The verdict on a case, and what follows it.
    fn next(&mut self, verdict: &Value, returncode: i32, command: &mut Command) -> Next {
        if self.is_given_up(command) {
            return Next::Over;
        }
        let required = self.programs.get(self.series.done).map_or(false, |program| program.required);
        self.series.judged(verdict, command);
        if self.series.is_complete() {
            self.series.end_complete(command);
            return Next::Over;
        }
        if required && returncode != 0 {
            self.series.status = Status::Exited(0); // Nobody has to run what comes after it.
            return Next::Over;
        }
        Next::Renew
    }

    /// Takes the next share; after a case, and before its process.
    pub fn begin_share(&mut self) -> Answers {
        self.shares.begin(self.series.done)
    }

    fn stop_clock(&mut self, looper: &mut EventLoop) {
        if let Some(timer) = self.clock.take() {
            looper.cancel(timer);
        }
    }

    /// No other process follows.
    pub fn close(&mut self, command: &mut Command, looper: &mut EventLoop) {
        self.stop_clock(looper);
        for one in self.printed.iter_mut().flatten() {
            command.left.extend(one.release(looper));
        }
    }
}
