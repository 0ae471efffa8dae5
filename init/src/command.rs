//! One command: from its start to its result, and what its listener sees of it.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::base64;
use crate::cases::Cases;
use crate::connection::Connection;
use crate::errors::{Fields, Refused};
use crate::event_loop::{Call, EventLoop, Timer, Token};
use crate::frames::{self, Head};
use crate::input::{Answers, Input};
use crate::json::{object, Value};
use crate::output::Output;
use crate::process_tree::Processes;
use crate::programs::Programs;
use crate::spawn::{self, Ends, Failure};
use crate::subreaper;
use crate::sys::{self, Status, Usage};

/// How long after its exit a command's pipes may stay open before the result comes without their end.
pub const LINGER_SECONDS: f64 = 0.1;
/// Of a command that nobody reads along its begin and what it says come with its end, if that is so soon and so little.
const TOGETHER_SECONDS: f64 = 0.1;
const TOGETHER_BYTES: u64 = 16 << 10;
/// So little in shared memory is not worth waking two processes for, while more may come in a moment.
const LITTLE_SHARED_BYTES: u64 = 512 << 10;
const LITTLE_SHARED_SECONDS: f64 = 0.001;
/// Pause between two looks at a child that has not become its program: somebody inside may have stopped it.
const BIRTH_SECONDS: f64 = 0.01;
/// A group may have next to no processor time; longer than this nobody waits.
const LONGEST_BIRTH_SECONDS: f64 = 10.0;

/// What a server asks for.
pub struct Spec {
    pub exec_id: Vec<u8>,
    pub command: Vec<Vec<u8>>,
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    pub working_dir: Vec<u8>,
    /// Who it is; empty: who commands of the sandbox are.
    pub user: Vec<u8>,
    pub stdin: bool,
    pub main: bool,
    pub timeout_seconds: Option<f64>,
    pub input: Option<Vec<u8>>,
    /// Width and height.
    pub terminal: Option<(u16, u16)>,
    /// Runs several cases in a program of ours.
    pub cases: Option<Box<Cases>>,
    /// Its cases are programs.
    pub programs: Option<Box<Programs>>,
    /// Tells a repeated request from another one under the same id.
    pub fingerprint: u64,
}

impl Spec {
    pub fn read(value: &Value, fingerprint: u64) -> Result<Spec, Refused> {
        let fields = Fields(value);
        let input = fields.text_or_none("input")?.map(|text| {
            base64::decode(text).ok_or_else(|| Refused::invalid("a malformed request: \"input\" is no base64"))
        });
        let terminal = match value.get("terminal") {
            None | Some(Value::Null) => None,
            Some(Value::Array(size)) => match size[..] {
                [Value::Int(width), Value::Int(height)] => match (u16::try_from(width), u16::try_from(height)) {
                    (Ok(width), Ok(height)) => Some((width, height)),
                    _ => return Err(Refused::invalid("a malformed request: \"terminal\"")),
                },
                _ => return Err(Refused::invalid("a malformed request: \"terminal\"")),
            },
            Some(_) => return Err(Refused::invalid("a malformed request: \"terminal\"")),
        };
        let (mut cases, mut programs) = (None, None);
        if let Some(given) = value.get("cases").filter(|given| **given != Value::Null) {
            match given.get("programs") {
                None | Some(Value::Null) => cases = Some(Box::new(Cases::read(given)?)),
                Some(_) => programs = Some(Box::new(Programs::read(given)?)),
            }
        }
        Ok(Spec {
            exec_id: fields.text("exec_id")?.to_vec(),
            command: fields.texts("command")?,
            environment: fields.variables("environment")?,
            working_dir: fields.text_or_none("working_dir")?.unwrap_or(b"").to_vec(),
            user: fields.text_or_none("user")?.unwrap_or(b"").to_vec(),
            stdin: fields.flag("stdin")?,
            main: fields.flag_or("main", Some(false))?,
            timeout_seconds: fields.number_or_none("timeout_seconds")?,
            input: input.transpose()?,
            terminal,
            cases,
            programs,
            fingerprint,
        })
    }
}

pub fn fingerprint(spec: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    spec.hash(&mut hasher);
    hasher.finish()
}

/// A child that has not become its program yet, as far as is known.
struct Birth {
    report: OwnedFd,
    program: Vec<u8>,
    name: Vec<u8>,
    deadline: f64,
    /// When it is looked at again.
    timer: Timer,
    /// Everybody was stopped, since somebody had stopped it.
    is_frozen: bool,
}

impl Birth {
    fn end(self, pid: i32, looper: &mut EventLoop, processes: &Processes) {
        processes.is_born(pid);
        looper.cancel(self.timer);
        if self.is_frozen {
            let everyone = processes.all().map(|all| all.into_iter().collect()).unwrap_or_default();
            processes.thaw(everyone);
        }
    }
}

/// A command on record. `result` is set once it is over.
pub struct Command {
    pub number: u64,
    pub exec_id: Vec<u8>,
    pub main: bool,
    pub fingerprint: u64,
    pub tag: Option<u64>,
    pub pid: Option<i32>,
    pub result: Option<Value>,
    pub returncode: i32,
    /// Ended by the sandbox's own end: it gets no result.
    pub silenced: bool,
    pub timed_out: bool,
    pub cancelled: bool,
    pub oom_killed: bool,
    /// Of one that was killed with all others: a line for its stderr, or its terminal.
    pub last_words: Option<Vec<u8>>,
    pub subscriber: Option<Subscriber>,
    pub outputs: [Output; 2],
    pub input: Input,
    pub limit: Option<Timer>,
    /// Of a command of several cases, each in turn: what it was asked for, and what runs them.
    pub spec: Option<Box<Spec>>,
    pub cases: Option<Box<Cases>>,
    pub programs: Option<Box<Programs>>,
    /// Pipes that it gives away, to which somebody may still write.
    pub left: Vec<OwnedFd>,
    begun: bool,
    /// By which its subreaper tells its end, where it has one.
    kept: Option<OwnedFd>,
    is_terminal: bool,
    birth: Option<Birth>,
    failure: Option<Failure>,
    status: Option<Status>,
    usage: Usage,
    started: f64,
    ended: f64,
    lingered: bool,
}

impl Command {
    pub fn new(number: u64, spec: &Spec, ends: Ends, looper: &mut EventLoop) -> Command {
        let is_terminal = spec.terminal.is_some();
        Command {
            number,
            exec_id: spec.exec_id.clone(),
            main: spec.main,
            fingerprint: spec.fingerprint,
            tag: None,
            pid: None,
            result: None,
            returncode: 0,
            silenced: false,
            timed_out: false,
            cancelled: false,
            oom_killed: false,
            last_words: None,
            subscriber: None,
            outputs: [
                Output::new(ends.stdout, Token::Output(number, 0), is_terminal, looper),
                Output::new(ends.stderr, Token::Output(number, 1), false, looper),
            ],
            input: Input::new(ends.stdin, Token::Input(number), is_terminal),
            limit: None,
            spec: None,
            cases: None,
            programs: None,
            left: Vec::new(),
            begun: false,
            kept: None,
            is_terminal,
            birth: None,
            failure: None,
            status: None,
            usage: Usage::default(),
            started: looper.now(),
            ended: 0.0,
            lingered: false,
        }
    }

    /// Whether it is not over, be it that no process of it lives for the moment.
    pub fn is_running(&self) -> bool {
        self.begun && self.status.is_none()
    }

    /// Whether it has begun and its result comes when its process and its pipes are done. Held, it needs somebody else.
    pub fn is_unfinished(&self) -> bool {
        let is_held = self.programs.as_ref().map_or(false, |programs| programs.is_held());
        self.begun && self.result.is_none() && !is_held
    }

    /// Whether somebody has ended it, so that nothing more of it runs.
    pub fn is_given_up(&self) -> bool {
        self.silenced || self.was_killed()
    }

    fn was_killed(&self) -> bool {
        self.timed_out || self.cancelled || self.oom_killed || self.last_words.is_some()
    }

    /// Whether its result has been sent to the one who listens.
    pub fn is_delivered(&self) -> bool {
        self.subscriber.as_ref().map_or(false, |subscriber| subscriber.over)
    }

    // -- its birth --------------------------------------------------------------------------------------------------------

    /// It is on record, and its first process follows.
    pub fn begin_series(&mut self) {
        self.begun = true;
    }

    /// It has a process, which is its program, and a subreaper.
    pub fn begin_kept(&mut self, pid: i32, tag: u64, report: OwnedFd, looper: &mut EventLoop) {
        self.begun = true;
        self.pid = Some(pid);
        self.tag = Some(tag);
        looper.watch(report.as_raw_fd(), sys::EPOLLIN, Token::Subreaper(self.number));
        self.kept = Some(report);
    }

    /// What its subreaper tells: how it ended.
    pub fn hear_subreaper(&mut self, looper: &mut EventLoop) -> Option<(Status, Usage)> {
        let report = self.kept.take()?;
        let heard = subreaper::heard(&report);
        if heard.is_none() {
            self.kept = Some(report);
        } else {
            looper.forget(report.as_raw_fd());
        }
        heard
    }

    /// It has a process, which is about to become its program.
    pub fn begin(
        &mut self,
        pid: i32,
        tag: u64,
        report: OwnedFd,
        program: Vec<u8>,
        name: Vec<u8>,
        looper: &mut EventLoop,
    ) {
        self.begun = true;
        self.pid = Some(pid);
        self.tag = Some(tag);
        let timer = looper.after(BIRTH_SECONDS, Call::Birth(self.number));
        let deadline = looper.now() + LONGEST_BIRTH_SECONDS;
        self.birth = Some(Birth { report, program, name, deadline, timer, is_frozen: false });
    }

    /// It could not be started: says so on stderr, or on its terminal, as a shell would. It is over then.
    pub fn fail(&mut self, failure: Failure, looper: &mut EventLoop) {
        self.say(&failure.message);
        self.status = Some(Status::Exited(failure.returncode));
        self.failure = Some(failure);
        self.ended = self.started;
        self.finish(looper);
    }

    /// Whether it is the program by now, or has said why not and ends. Nobody waits for that: most are over before anybody looks.
    pub fn is_born(&mut self, looper: &mut EventLoop, processes: &Processes) -> bool {
        let birth = match self.birth.take() {
            Some(birth) => birth,
            None => return true,
        };
        let mut number = [0; 4];
        match sys::read_some(&birth.report, &mut number) {
            Err(error) if sys::number_of(&error) == sys::EAGAIN => {
                self.birth = Some(birth);
                return false;
            }
            Ok(4) => self.not_born(&birth, i32::from_ne_bytes(number)),
            _ => {}
        }
        birth.end(self.pid.unwrap_or(0), looper, processes);
        true
    }

    /// It takes long to become its program: helps a child that somebody has stopped, or ends one that takes far too long.
    ///
    /// Who sends SIGSTOP to every number that comes next can stop a child at its birth. Whoever does is stopped himself until it is
    /// through.
    pub fn help_birth(&mut self, looper: &mut EventLoop, processes: &Processes) {
        let (mut birth, pid) = match (self.birth.take(), self.pid) {
            (Some(birth), Some(pid)) => (birth, pid),
            _ => return,
        };
        if processes.is_paused() {
            // It goes on with all others, and then has all of its time.
            birth.deadline = looper.now() + LONGEST_BIRTH_SECONDS;
            birth.timer = looper.after(BIRTH_SECONDS, Call::Birth(self.number));
            self.birth = Some(birth);
            return;
        }
        if looper.now() >= birth.deadline {
            self.not_born(&birth, sys::ETIMEDOUT);
            birth.end(pid, looper, processes);
            drop(sys::send_signal(pid, sys::SIGKILL));
            return;
        }
        if !birth.is_frozen && processes.is_stopped(pid) {
            let before: Vec<i32> = processes.all().unwrap_or_default();
            processes.freeze(&before);
            processes.goes_on(pid);
            birth.is_frozen = true;
        }
        if birth.is_frozen {
            // To one that is only slow it may come once it is its program, and stop it there for whoever traces it.
            drop(sys::send_signal(pid, sys::SIGCONT));
        }
        birth.timer = looper.after(BIRTH_SECONDS, Call::Birth(self.number));
        self.birth = Some(birth);
    }

    fn not_born(&mut self, birth: &Birth, number: i32) {
        let error = io::Error::from_raw_os_error(number);
        self.failure = Some(spawn::failure(&birth.name, &birth.program, &error));
    }

    /// Why its last process could not become its program.
    pub fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    // -- its life ---------------------------------------------------------------------------------------------------------

    /// Signals its process group, while its own process keeps the number of the group from being used again.
    pub fn signal(&self, number: i32) {
        if let Some(pid) = self.pid.filter(|_| self.is_running()) {
            // Who is gone needs none.
            drop(sys::send_signal(-pid, number));
        }
    }

    /// Hangs its terminal up, if it has one: a shell at a prompt ignores SIGTERM, and who is stopped cannot hear.
    pub fn hang_up(&self) {
        if let Some(master) = self.outputs[0].terminal() {
            for number in [sys::SIGHUP, sys::SIGCONT] {
                self.signal(number);
                if let Some(group) = sys::foreground_of(master).ok().filter(|group| *group > 1) {
                    drop(sys::send_signal(-group, number));
                }
            }
        }
    }

    /// Gives its terminal another size; nothing happens once it has ended.
    pub fn resize(&self, width: u16, height: u16) -> Result<(), Refused> {
        if !self.is_terminal {
            let message = format!("'{}' has no terminal", String::from_utf8_lossy(&self.exec_id));
            return Err(Refused::invalid(message));
        }
        if let Some(master) = self.outputs[0].terminal() {
            // Whoever is inside may have made it something that has no size.
            drop(sys::resize_terminal(master, width, height));
        }
        Ok(())
    }

    // -- its end ----------------------------------------------------------------------------------------------------------

    /// Its own process is gone; the result comes when its pipes are empty.
    pub fn reaped(&mut self, status: Status, usage: Usage, looper: &mut EventLoop) -> Answers {
        self.ended = looper.now();
        self.status = Some(status);
        if let Some(timer) = self.limit.take() {
            looper.cancel(timer);
        }
        self.usage = usage;
        let answers = self.input.close(looper);
        for output in &mut self.outputs {
            output.mark_exit(looper);
        }
        answers
    }

    /// No other process of one that has several follows.
    pub fn end_series(&mut self, looper: &mut EventLoop) -> Answers {
        let mut answers = Answers::new();
        let (mut status, mut usage) = (Status::Exited(0), Usage::default());
        if let Some(mut cases) = self.cases.take() {
            (status, usage) = (cases.series.status, cases.series.usage);
            cases.close(self, looper);
        }
        if let Some(mut programs) = self.programs.take() {
            (status, usage) = (programs.series.status, programs.series.usage);
            answers.extend(programs.close_input());
            self.input.accepted = programs.accepted();
            programs.close(self, looper);
        }
        self.spec = None;
        answers.extend(self.reaped(status, usage, looper));
        answers
    }

    pub fn linger_no_longer(&mut self) {
        self.lingered = true;
    }

    /// Whether its result can be made now.
    pub fn is_over(&self) -> bool {
        let drained = |output: &Output| {
            output.at_end() || (self.lingered && output.target.map_or(false, |target| output.end() >= target))
        };
        self.status.is_some() && self.result.is_none() && self.outputs.iter().all(drained)
    }

    /// Makes the result; what is open of its pipes is given away.
    pub fn finish(&mut self, looper: &mut EventLoop) -> Vec<OwnedFd> {
        let left = self.outputs.iter_mut().filter_map(|output| output.release(looper)).collect();
        if !self.outputs[0].is_in_memory() {
            self.outputs[0].give_back(looper);
        }
        if let Some(words) = self.last_words.clone() {
            self.say(&words);
        }
        let failed_at_birth = self.failure.take().filter(|_| self.begun);
        let mut status = self.status.unwrap_or(Status::Exited(0));
        if let Some(failure) = failed_at_birth.filter(|_| !self.was_killed()) {
            self.say(&failure.message);
            status = Status::Exited(failure.returncode);
        }
        let by = match status {
            Status::Killed(signal) => Some(signal),
            _ => None,
        };
        self.returncode = if self.was_killed() { 128 + sys::SIGKILL } else { status.code() };
        let mut result = object([
            ("returncode", self.returncode.into()),
            ("signal", if self.was_killed() { sys::SIGKILL.into() } else { by.into() }),
            ("timed_out", self.timed_out.into()),
            ("oom_killed", self.oom_killed.into()),
            ("cancelled", self.cancelled.into()),
            ("duration_seconds", rounded(self.ended - self.started).into()),
            ("stdout_bytes_total", self.outputs[0].end().into()),
            ("stderr_bytes_total", self.outputs[1].end().into()),
        ]);
        if self.begun {
            result = result.with([
                ("cpu_seconds", rounded(self.usage.cpu_seconds).into()),
                ("max_rss_bytes", self.usage.max_rss_bytes.into()),
            ]);
        }
        self.result = Some(result);
        left
    }

    /// Adds a line of process 1's own to its stderr, or its terminal.
    pub fn say(&mut self, line: &[u8]) {
        let end: &[u8] = if self.is_terminal { b"\r\n" } else { b"\n" };
        self.outputs[usize::from(!self.is_terminal)].put(&[line, end].concat());
    }

    /// Its result and what was not confirmed of its output, for a later reader. One line, whatever it printed.
    pub fn left_behind(&self) -> Vec<u8> {
        let kept =
            |output: &Output| Value::Array(vec![output.base.into(), Value::Text(base64::encode(&output.rest()))]);
        let mut line = object([
            ("exec_id", Value::Text(self.exec_id.clone())),
            ("exit", self.result.clone().unwrap_or(Value::Null)),
            ("output", Value::Array(self.outputs.iter().map(kept).collect())),
        ])
        .to_bytes();
        line.push(b'\n');
        line
    }

    /// Whether memory for large output is of use to it.
    pub fn may_use_memory(&self) -> bool {
        !self.is_terminal && self.result.is_none() && self.cases.is_none() && self.programs.is_none()
    }

    /// Has this listener from now on, or none. Who has shared memory and listens no more has no say any more.
    pub fn listen(&mut self, subscriber: Option<Subscriber>, looper: &mut EventLoop) {
        if !subscriber.as_ref().map_or(false, |subscriber| subscriber.has_shared) {
            self.outputs[0].give_back(looper);
        }
        self.subscriber = subscriber;
    }

    // -- its listener -----------------------------------------------------------------------------------------------------

    /// Sends what its listener lacks, a piece at a time, then the result; true to be asked again.
    pub fn pump(&mut self, connection: &mut Connection, looper: &mut EventLoop) -> bool {
        let mut subscriber = match self.subscriber.take() {
            Some(subscriber) if subscriber.connection == connection.number && !subscriber.over => subscriber,
            other => {
                self.subscriber = other;
                return false;
            }
        };
        let more = self.pump_to(&mut subscriber, connection, looper);
        self.subscriber = Some(subscriber);
        more
    }

    fn pump_to(&mut self, to: &mut Subscriber, connection: &mut Connection, looper: &mut EventLoop) -> bool {
        for index in [to.turn, 1 - to.turn] {
            let output = &mut self.outputs[index];
            // A confirmation may have run ahead of what this connection has sent.
            to.sent[index] = to.sent[index].max(output.base);
            if output.is_full() && output.base < to.known[index] {
                // Whoever attached ahead of the output knows these bytes, and would never confirm them.
                output.confirm(to.known[index], looper);
            }
            if to.sent[index] < output.end() {
                if let Some((at, size)) = output.place(to.sent[index]) {
                    let is_little = output.end() - to.sent[index] < LITTLE_SHARED_BYTES;
                    if is_little && self.status.is_none() && !to.is_due {
                        if !std::mem::replace(&mut to.is_timed, true) {
                            looper.after(LITTLE_SHARED_SECONDS, Call::TellOfLittle(self.number));
                        }
                        continue;
                    }
                    to.is_due = false;
                    let offset = to.sent[index];
                    let head = Head { kind: frames::SHARED, stream: index as u8 + 1, channel: to.channel, offset };
                    connection.send(head, &[(at as u64).to_be_bytes(), (size as u64).to_be_bytes()].concat());
                    to.sent[index] += size as u64;
                    to.turn = 1 - index;
                    return true;
                }
                let piece = output.peek(to.sent[index]);
                let head =
                    Head { kind: frames::DATA, stream: index as u8 + 1, channel: to.channel, offset: to.sent[index] };
                let is_little = to.sent[index] + (piece.len() as u64) < TOGETHER_BYTES;
                if to.waits_for_end && is_little && looper.now() < self.started + TOGETHER_SECONDS {
                    connection.send_with_next(head, piece, looper);
                } else {
                    connection.send(head, piece);
                }
                to.sent[index] += piece.len() as u64;
                to.turn = 1 - index;
                return true;
            }
        }
        if let Some(result) = self.result.as_ref().filter(|_| !self.silenced) {
            to.over = true;
            connection.send_json(frames::EXIT, result, to.channel);
        }
        false
    }
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

/// A channel that asks for a command's output.
pub struct Listener<'a> {
    pub connection: &'a mut Connection,
    pub channel: u16,
    /// From where on.
    pub offsets: [u64; 2],
    /// Nobody reads along: what a short command says, that it has begun too, may come with its end.
    pub waits_for_end: bool,
    /// For large output of a command that begins by this.
    pub memory: Option<OwnedFd>,
    /// The command has taken it.
    pub shares_memory: bool,
}

impl Listener<'_> {
    pub fn tell(&mut self, kind: u8, value: &Value, looper: &mut EventLoop) {
        let (head, payload) = (Head::of(kind, self.channel), value.to_bytes());
        if self.waits_for_end {
            self.connection.send_with_next(head, &payload, looper);
        } else {
            self.connection.send(head, &payload);
        }
    }
}

/// The one listener of a command.
pub struct Subscriber {
    /// The number of its connection.
    pub connection: u64,
    pub channel: u16,
    pub over: bool,
    sent: [u64; 2],
    /// Up to which offsets it is sure to have all.
    known: [u64; 2],
    turn: usize,
    waits_for_end: bool,
    has_shared: bool,
    is_timed: bool,
    is_due: bool,
}

impl Subscriber {
    /// Tells at once what is gone of what it lacks.
    pub fn new(command: &Command, to: &mut Listener<'_>) -> Subscriber {
        let (channel, connection) = (to.channel, &mut *to.connection);
        let mut sent = to.offsets;
        for (index, output) in command.outputs.iter().enumerate() {
            if sent[index] < output.base {
                let gap = object([("from_offset", sent[index].into()), ("to_offset", output.base.into())]);
                let head = Head { kind: frames::GAP, stream: index as u8 + 1, channel, offset: sent[index] };
                connection.send(head, &gap.to_bytes());
                sent[index] = output.base;
            }
        }
        Subscriber {
            connection: connection.number,
            channel,
            over: false,
            sent,
            known: to.offsets,
            turn: 0,
            waits_for_end: to.waits_for_end,
            has_shared: to.shares_memory,
            is_timed: false,
            is_due: false,
        }
    }

    /// A moment has passed in which little came.
    pub fn moment_over(&mut self) {
        self.is_timed = false;
        self.is_due = true;
    }
}
