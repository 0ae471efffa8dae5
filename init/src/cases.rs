//! A command that runs cases in a program of ours (`grading/inside/cases.py`), and the verdicts on them.
//!
//! The program is a process of the sandbox like any other, and code under test runs in it. What tells that a case has passed is a
//! record that it writes after the case's last statement; when that has come, what the case has printed is taken to be its own and
//! the next one may begin. All that is believed is read here, where nobody inside can write: a process that ends, is killed or
//! stands still without a record has not passed. Those cases that are left then begin in another process.

use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::command::Command;
use crate::errors::{Fields, Refused};
use crate::event_loop::{Call, EventLoop, Timer, Token};
use crate::json::{object, Value};
use crate::spawn::{CaseEnds, Failure};
use crate::successive::{Next, Series};
use crate::sys::{self, Status, Usage};

const READ_BYTES: usize = 64 << 10;
const DRAIN_READS: usize = 32;
const MOST_RECORD_BYTES: usize = 64 << 10;
const SIZE_BYTES: usize = 8;
/// So long after nobody can record any more the process is given up, if it has not ended.
const CLOSED_SECONDS: f64 = 0.1;
/// What a case has printed or reported is told apart by these numbers, and the record by the one behind.
pub const RECORD: usize = 3;
/// That the program may give for a case that failed.
const GIVEN_REASONS: [&str; 7] =
    ["assertion", "exception", "out_of_memory", "ended_early", "skipped", "not_checked", "not_separable"];

/// A pipe of the program, read as long as anybody writes.
struct Pipe {
    fd: Option<OwnedFd>,
    watched: bool,
}

impl Pipe {
    fn new(fd: Option<OwnedFd>, token: Token, looper: &mut EventLoop) -> Pipe {
        let watched = fd.is_some();
        if let Some(fd) = &fd {
            looper.watch(fd.as_raw_fd(), sys::EPOLLIN, token);
        }
        Pipe { fd, watched }
    }

    fn forget(&mut self, looper: &mut EventLoop) {
        if let Some(fd) = self.fd.as_ref().filter(|_| self.watched) {
            looper.forget(fd.as_raw_fd());
            self.watched = false;
        }
    }

    /// Reads once; nothing where there is nothing, or no more is watched.
    fn read(&mut self, buffer: &mut [u8], looper: &mut EventLoop) -> usize {
        let result = match self.fd.as_ref().filter(|_| self.watched) {
            Some(fd) => sys::read_some(fd, buffer),
            None => return 0,
        };
        match result {
            Ok(count) if count > 0 => count,
            Err(error) if sys::number_of(&error) == sys::EAGAIN => 0,
            _ => {
                self.forget(looper);
                0
            }
        }
    }

    /// Gives it away where somebody may still write to it.
    fn release(mut self, looper: &mut EventLoop) -> Option<OwnedFd> {
        let wanted = self.watched;
        self.forget(looper);
        self.fd.take().filter(|_| wanted)
    }
}

/// One process that runs cases, from the first that is left on.
struct Program {
    /// How many cases had a verdict before.
    first: usize,
    /// Whether a case is under way, or was left by the process's end.
    begun: bool,
    timed_out: bool,
    /// It waits to be told to go on, or with which case to begin.
    may_go: bool,
    /// Killed, since it can record nothing any more.
    unheard: bool,
    told: bool,
    ready: bool,
    over: bool,
    record: Vec<u8>,
    texts: [Vec<u8>; 3],
    pipes: Vec<Pipe>,
    go: OwnedFd,
    reports: bool,
    timer: Option<Timer>,
    since: f64,
}

/// What runs the cases of a command, one process after the other.
pub struct Cases {
    pub series: Series,
    token: Vec<u8>,
    most_bytes: usize,
    report_bytes: usize,
    pub reports: bool,
    program: Option<Program>,
}

/// What becomes of a case.
struct Verdict {
    passed: bool,
    reason: String,
    message: String,
    traceback: Option<String>,
    signal: Option<i32>,
    seconds: f64,
    texts: Vec<String>,
}

impl Verdict {
    fn to_value(&self) -> Value {
        let text = |text: &str| Value::from(text);
        let mut value = object([
            ("passed", self.passed.into()),
            ("reason", text(&self.reason)),
            ("message", text(&self.message)),
            ("duration_seconds", self.seconds.into()),
            ("stdout", text(&self.texts[0])),
            ("stderr", text(&self.texts[1])),
        ]);
        if let Some(reports) = self.texts.get(2) {
            value = value.with([("reports", text(reports))]);
        }
        if let Some(traceback) = &self.traceback {
            value = value.with([("traceback", text(traceback))]);
        }
        if self.signal.is_some() {
            value = value.with([("signal", self.signal.into())]);
        }
        value
    }
}

impl Cases {
    /// From what a command's `cases` say.
    pub fn read(value: &Value) -> Result<Cases, Refused> {
        let fields = Fields(value);
        let most_bytes = fields.size("output_bytes")? as usize;
        let report_bytes = fields.size_or_none("report_bytes")?.filter(|bytes| *bytes > 0);
        Ok(Cases {
            series: Series::read(value)?,
            token: fields.text("token")?.to_vec(),
            most_bytes,
            report_bytes: report_bytes.map_or(most_bytes, |bytes| bytes as usize),
            reports: fields.flag("reports")?,
            program: None,
        })
    }

    /// A process runs: the first, or one for the cases that another has left.
    pub fn started(&mut self, ends: CaseEnds, command: &mut Command, looper: &mut EventLoop) {
        let number = command.number;
        let pipe = |which: usize, fd: Option<OwnedFd>, looper: &mut EventLoop| {
            Pipe::new(fd, Token::Case(number, which as u8), looper)
        };
        let reports = ends.report.is_some();
        let pipes = vec![
            pipe(0, Some(ends.stdout), looper),
            pipe(1, Some(ends.stderr), looper),
            pipe(2, ends.report, looper),
            pipe(RECORD, Some(ends.record), looper),
        ];
        self.program = Some(Program {
            first: self.series.done,
            begun: false,
            timed_out: false,
            may_go: true,
            unheard: false,
            told: false,
            ready: false,
            over: false,
            record: Vec::new(),
            texts: [Vec::new(), Vec::new(), Vec::new()],
            pipes,
            go: ends.go,
            reports,
            timer: None,
            since: looper.now(),
        });
        self.go_on(command, looper);
    }

    /// A process could not be started: the verdicts so far are what there is.
    pub fn not_started(&mut self, failure: &Failure, command: &mut Command, looper: &mut EventLoop) -> Next {
        self.close(command, looper);
        if self.series.done == 0 {
            command.say(&failure.message);
            self.series.status = Status::Exited(failure.returncode);
        }
        Next::Over
    }

    /// Something has come by one of its pipes.
    pub fn happened(&mut self, which: usize, command: &mut Command, looper: &mut EventLoop) {
        if which == RECORD {
            self.take_record(command, looper);
        } else {
            self.take(which, looper);
        }
    }

    /// Lets the program begin a case, unless too many verdicts wait for their reader.
    pub fn go_on(&mut self, command: &mut Command, looper: &mut EventLoop) {
        let full = command.outputs[0].is_full();
        let first = match &mut self.program {
            Some(program) if program.may_go && !full => {
                program.may_go = false;
                (!program.told).then_some(program.first)
            }
            _ => return,
        };
        if first.is_none() {
            self.begin(None, command, looper);
        }
        let word = first.map_or_else(|| b"g".to_vec(), |first| format!("{first}\n").into_bytes());
        if let Some(program) = &mut self.program {
            if sys::write_some(&program.go, &word).is_ok() {
                program.told = true;
            } else {
                // It is over, as will be heard, and what it was not told has not begun.
                program.begun = false;
                stop_clock(program, looper);
            }
        }
    }

    fn begin(&mut self, told: Option<&[u8]>, command: &Command, looper: &mut EventLoop) {
        let limit = self.series.limit();
        if let Some(program) = &mut self.program {
            program.begun = true;
            let now = looper.now();
            // By the program's own clock, which is this one's; how long a case took is all that depends on it.
            let said = told.and_then(|text| std::str::from_utf8(text).ok()?.trim().parse::<f64>().ok());
            program.since = said.filter(|said| said.is_finite()).map_or(now, |said| said.max(program.since).min(now));
            program.timer = limit.map(|seconds| looper.limit(seconds, Call::CaseLate(command.number)));
        }
    }

    /// The time of a case is over.
    pub fn too_late(&mut self, command: &mut Command, looper: &mut EventLoop) {
        let late = self.series.done;
        self.take_record(command, looper);
        if self.series.done == late {
            if let Some(program) = &mut self.program {
                program.timed_out = true;
                program.pipes[RECORD].forget(looper);
                command.signal(sys::SIGKILL);
            }
        }
    }

    /// It can record nothing any more.
    pub fn give_up(&mut self, command: &Command) {
        if let Some(program) = self.program.as_mut().filter(|program| !program.over) {
            program.unheard = true;
            command.signal(sys::SIGKILL);
        }
    }

    /// A process is gone; others follow as long as each comes to a verdict.
    pub fn reaped(&mut self, status: Status, usage: Usage, command: &mut Command, looper: &mut EventLoop) -> Next {
        self.series.add_usage(status, usage);
        let verdict = self.ended(status, command, looper);
        let program = match self.program.take() {
            Some(program) => program,
            None => return Next::Over,
        };
        let stderr = program.texts[1].clone();
        let first = program.first;
        close(program, command, looper);
        if !command.is_given_up() {
            if let Some(verdict) = verdict {
                self.series.judged(&verdict.to_value(), command);
            }
            if self.series.is_complete() {
                self.series.end_complete(command);
                return Next::Over;
            }
            if self.series.done > first {
                return Next::Renew;
            }
            command.outputs[1].put(&stderr);
        } else if let Some(mut verdict) = verdict.filter(|_| command.oom_killed && !command.silenced) {
            // None follows, but what this one has printed and reported is known.
            verdict.reason = "out_of_memory".to_owned();
            verdict.message = "killed at the memory limit".to_owned();
            self.series.judged(&verdict.to_value(), command);
        }
        Next::Over
    }

    /// The process is gone; the verdict on a case that was under way.
    fn ended(&mut self, status: Status, command: &mut Command, looper: &mut EventLoop) -> Option<Verdict> {
        if let Some(program) = &mut self.program {
            program.over = true; // A record that is read now lets nothing begin.
        }
        for _ in 0..DRAIN_READS {
            // Somebody left behind may write for ever.
            if !self.take_record(command, looper) {
                break;
            }
        }
        self.drain(looper);
        let done = self.series.done;
        let program = self.program.as_ref()?;
        if !has_begun(program, done) {
            return None;
        }
        let mut verdict = verdict_of(program, false, looper);
        if program.timed_out {
            verdict.reason = "timed_out".to_owned();
            verdict.message = "the case ran longer than its time limit".to_owned();
        } else if program.unheard {
            verdict.message = "the code spoilt what its end would have been told by".to_owned();
        } else if let Status::Killed(number) = status {
            verdict.reason = "killed".to_owned();
            verdict.message = format!("killed by signal {number}");
            verdict.signal = Some(number);
        } else {
            verdict.message = format!("the process ended with code {} before the last assertion", status.code());
        }
        Some(verdict)
    }

    /// Reads once; what is too much is read and dropped.
    fn take(&mut self, which: usize, looper: &mut EventLoop) -> bool {
        let most = if which == 2 { self.report_bytes } else { self.most_bytes };
        let mut buffer = [0; 4096];
        let program = match &mut self.program {
            Some(program) => program,
            None => return false,
        };
        let mut any = false;
        // As much as was there, and no more: somebody may write for ever.
        for _ in 0..READ_BYTES / buffer.len() {
            let count = program.pipes[which].read(&mut buffer, looper);
            if count == 0 {
                break;
            }
            any = true;
            let room = most.saturating_sub(program.texts[which].len()).min(count);
            program.texts[which].extend_from_slice(&buffer[..room]);
            if count < buffer.len() {
                break;
            }
        }
        any
    }

    /// Takes what has been printed by now; somebody left behind may print for ever.
    fn drain(&mut self, looper: &mut EventLoop) {
        for _ in 0..DRAIN_READS {
            let mut any = false;
            for which in 0..RECORD {
                any |= self.take(which, looper);
            }
            if !any {
                return;
            }
        }
    }

    /// Reads once; false: there was nothing.
    fn take_record(&mut self, command: &mut Command, looper: &mut EventLoop) -> bool {
        let mut buffer = [0; 4096];
        let (count, closed) = match &mut self.program {
            Some(program) => {
                let watched = program.pipes[RECORD].watched;
                let count = program.pipes[RECORD].read(&mut buffer, looper);
                program.record.extend_from_slice(&buffer[..count]);
                (count, watched && !program.pipes[RECORD].watched && !program.over)
            }
            None => return false,
        };
        if count > 0 && !self.whole_records(command, looper) {
            // Nobody writes such a thing by mistake, and nothing that comes after it can be told from it.
            if let Some(program) = &mut self.program {
                program.pipes[RECORD].forget(looper);
            }
            self.give_up(command);
        } else if closed {
            // By its end as a rule.
            if let Some(program) = &mut self.program {
                stop_clock(program, looper);
                program.timer = Some(looper.after(CLOSED_SECONDS, Call::CaseUnheard(command.number)));
            }
        }
        count > 0
    }

    /// Handles those that are whole; false if what has come is none.
    fn whole_records(&mut self, command: &mut Command, looper: &mut EventLoop) -> bool {
        let head = self.token.len() + SIZE_BYTES;
        loop {
            let record = match &self.program {
                Some(program) if program.record.len() >= head => &program.record,
                _ => return true,
            };
            let size = std::str::from_utf8(&record[self.token.len()..head])
                .ok()
                .and_then(|text| text.trim().parse::<usize>().ok());
            let size = match size.filter(|size| *size <= MOST_RECORD_BYTES && record.starts_with(&self.token)) {
                Some(size) => size,
                None => return false,
            };
            if record.len() < head + size {
                return true;
            }
            let body = record[head..head + size].to_vec();
            if let Some(program) = &mut self.program {
                program.record.drain(..head + size);
            }
            self.handle(&body, command, looper);
        }
    }

    fn handle(&mut self, body: &[u8], command: &mut Command, looper: &mut EventLoop) {
        let (kind, rest) = match body.iter().position(|byte| *byte == 0) {
            Some(at) => (&body[..at], &body[at + 1..]),
            None => (body, &b""[..]),
        };
        let program = match &mut self.program {
            Some(program) => program,
            None => return,
        };
        if kind == b"begin" && program.told && !program.ready {
            program.ready = true;
            self.begin(Some(rest), command, looper);
        } else if matches!(kind, b"passed" | b"failed" | b"last") && program.begun {
            stop_clock(program, looper);
            self.drain(looper);
            let passed = kind == b"passed";
            let verdict = match &mut self.program {
                Some(program) => {
                    let mut verdict = verdict_of(program, passed, looper);
                    if !passed {
                        reasons_from(rest, &mut verdict);
                    }
                    program.begun = false;
                    program.texts = [Vec::new(), Vec::new(), Vec::new()];
                    verdict
                }
                None => return,
            };
            self.series.judged(&verdict.to_value(), command);
            let last = kind == b"last" || self.series.is_complete();
            if let Some(program) = &mut self.program {
                if last {
                    program.pipes[RECORD].forget(looper);
                    command.signal(sys::SIGKILL);
                } else if !program.over {
                    program.may_go = true;
                    self.go_on(command, looper);
                }
            }
        }
    }

    /// No other process follows: what is open is let go of.
    pub fn close(&mut self, command: &mut Command, looper: &mut EventLoop) {
        if let Some(program) = self.program.take() {
            close(program, command, looper);
        }
    }
}

fn stop_clock(program: &mut Program, looper: &mut EventLoop) {
    if let Some(timer) = program.timer.take() {
        looper.cancel(timer);
    }
}

/// Lets go of its pipes; those that somebody may still write to are read until he has gone.
fn close(mut program: Program, command: &mut Command, looper: &mut EventLoop) {
    stop_clock(&mut program, looper);
    for (which, pipe) in program.pipes.into_iter().enumerate() {
        if let Some(fd) = pipe.release(looper).filter(|_| which != 2) {
            command.left.push(fd);
        }
    }
}

/// Whether it had come as far as a case that has no verdict.
fn has_begun(program: &Program, done: usize) -> bool {
    if done == program.first && program.ready {
        return true;
    }
    if !program.begun && done > program.first {
        return false;
    }
    // What it was told last may be unread. It says itself that it begins only where there is a limit, or a verdict.
    program.told && sys::unread_bytes(&program.go) == 0
}

fn verdict_of(program: &Program, passed: bool, looper: &EventLoop) -> Verdict {
    let count = if program.reports { 3 } else { 2 };
    Verdict {
        passed,
        reason: if passed { "passed" } else { "ended_early" }.to_owned(),
        message: String::new(),
        traceback: None,
        signal: None,
        seconds: looper.now() - program.since,
        texts: program.texts[..count].iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect(),
    }
}

/// What the program says of a case that failed: a reason, a message and a traceback.
fn reasons_from(rest: &[u8], verdict: &mut Verdict) {
    let text = String::from_utf8_lossy(rest);
    let mut parts = text.split('\0');
    let reason = parts.next().unwrap_or("");
    if GIVEN_REASONS.contains(&reason) {
        verdict.reason = reason.to_owned();
        verdict.message = parts.next().unwrap_or("").to_owned();
        verdict.traceback = Some(parts.next().unwrap_or("").to_owned());
    }
}
