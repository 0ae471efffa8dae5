//! A subreaper for each command where there are no namespaces: whatever a command leaves behind comes to its subreaper.
//!
//! A subreaper is a copy of process 1 that starts one command, tells how that ended, and stays until all its descendants are gone. It takes a
//! second filter, which refuses to signal, limit or reschedule the supervisor and the subreaper itself: commands are born with it.

use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::sys::{self, Program, Status, Usage};

/// Stand in the filter for two numbers that are known late; so do their negatives, for process groups.
const SUPERVISOR: u32 = 0x5A0B_71D3;
const SUBREAPER: u32 = 0x5A0B_71E7;
const JUMP_IF_EQUAL: u16 = 0x15;
const STARTED: u8 = 1;
const FAILED: u8 = 2;
const REPORT_BYTES: usize = 32;
const HEAR_MILLISECONDS: u64 = 2000;
const STEP_MILLISECONDS: i32 = 10;

/// What starts the commands of a sandbox without namespaces.
pub struct Subreapers {
    filter: Vec<u8>,
}

/// A command that a subreaper has started.
pub struct Kept {
    pub subreaper: i32,
    pub pid: i32,
    /// By which the subreaper tells its end, see `heard`.
    pub report: OwnedFd,
}

impl Subreapers {
    /// With the filter of commands.
    pub fn new(filter: &[u8]) -> Subreapers {
        Subreapers { filter: put_in(filter, SUPERVISOR, sys::process_id()) }
    }

    /// Starts a program.
    ///
    /// # Errors
    /// It cannot be started, or there can be no subreaper.
    pub fn start(&self, program: &Program<'_>) -> io::Result<Kept> {
        let (report, said) = sys::make_pipe()?;
        let subreaper = sys::copy_process()?;
        if subreaper == 0 {
            drop(report);
            keep(&self.filter, &said, program);
        }
        drop(said);
        // The first word comes at once, unless another command stops it on purpose.
        let deadline = sys::now() + HEAR_MILLISECONDS * 1_000_000;
        while !sys::wait_readable(&[&report], STEP_MILLISECONDS)[0] {
            if sys::now() >= deadline {
                drop(sys::send_signal(subreaper, sys::SIGKILL));
                return Err(io::Error::from_raw_os_error(sys::ETIMEDOUT));
            }
            drop(sys::send_signal(subreaper, sys::SIGCONT));
        }
        let mut word = [0; REPORT_BYTES];
        match sys::read_some(&report, &mut word) {
            Ok(REPORT_BYTES) if word[0] == STARTED => {
                sys::never_block(&report)?;
                Ok(Kept { subreaper, pid: number_in(&word), report })
            }
            Ok(REPORT_BYTES) => Err(io::Error::from_raw_os_error(number_in(&word))),
            _ => Err(io::Error::from_raw_os_error(sys::ESRCH)), // It was killed.
        }
    }
}

fn number_in(word: &[u8; REPORT_BYTES]) -> i32 {
    i32::from_ne_bytes([word[4], word[5], word[6], word[7]])
}

/// The end of a command, as its subreaper tells it; nothing yet where that is still to come. A subreaper that was killed itself, by us with all
/// others or by a command of the sandbox, has told nothing.
pub fn heard(report: &OwnedFd) -> Option<(Status, Usage)> {
    let mut word = [0; REPORT_BYTES];
    match sys::read_some(report, &mut word) {
        Err(error) if sys::number_of(&error) == sys::EAGAIN => None,
        Ok(REPORT_BYTES) => {
            let number = |at: usize| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&word[at..at + 8]);
                u64::from_ne_bytes(bytes)
            };
            let usage = Usage { cpu_seconds: f64::from_bits(number(8)), max_rss_bytes: number(16) };
            let code = number_in(&word);
            let status = if word[1] == 1 { Status::Killed(code) } else { Status::Exited(code) };
            Some((status, usage))
        }
        _ => Some((Status::Killed(sys::SIGKILL), Usage::default())),
    }
}

fn word(kind: u8, is_signal: bool, number: i32, usage: Usage) -> [u8; REPORT_BYTES] {
    let mut word = [0; REPORT_BYTES];
    word[0] = kind;
    word[1] = is_signal.into();
    word[4..8].copy_from_slice(&number.to_ne_bytes());
    word[8..16].copy_from_slice(&usage.cpu_seconds.to_bits().to_ne_bytes());
    word[16..24].copy_from_slice(&usage.max_rss_bytes.to_ne_bytes());
    word
}

/// In the subreaper. Never returns.
fn keep(filter: &[u8], report: &OwnedFd, program: &Program<'_>) -> ! {
    match begin(filter, program) {
        Err(error) => {
            let number = sys::number_of(&error);
            drop(sys::write_some(
                report,
                &word(FAILED, false, if number == 0 { sys::EINVAL } else { number }, Usage::default()),
            ));
        }
        Ok(pid) => {
            drop(sys::write_some(report, &word(STARTED, false, pid, Usage::default())));
            wait(pid, report);
        }
    }
    sys::exit_now(0)
}

fn begin(filter: &[u8], program: &Program<'_>) -> io::Result<i32> {
    sys::lead_session();
    sys::die_with_parent()?;
    sys::control(sys::PR_SET_CHILD_SUBREAPER, 1)?;
    sys::load_filter(&put_in(filter, SUBREAPER, sys::process_id()))?;
    // Nobody else is a child of this process: it may be waited for.
    let (pid, born) = sys::start(&Program { alone: true, ..*program })?;
    let mut number = [0; 4];
    match sys::read_some(&born, &mut number) {
        Ok(4) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number))),
        _ => Ok(pid),
    }
}

fn wait(command: i32, report: &OwnedFd) {
    // All that process 1 had open, and this has a copy of.
    sys::close_from_but(0, report.as_raw_fd());
    let mut told = false;
    while let Ok((pid, status, usage)) = sys::wait_blocking() {
        match status {
            // It has made this process its tracer.
            Status::Stopped => drop(sys::send_signal(pid, sys::SIGKILL)),
            Status::Exited(code) | Status::Killed(code) if pid == command && !told => {
                told = true;
                let is_signal = matches!(status, Status::Killed(_));
                drop(sys::write_some(report, &word(0, is_signal, code, usage)));
                sys::close_number(report.as_raw_fd());
            }
            _ => {}
        }
    }
}

/// A filter with a process's number in the place of what stands for it.
fn put_in(filter: &[u8], stand_in: u32, pid: i32) -> Vec<u8> {
    let mut patched = filter.to_vec();
    for instruction in patched.chunks_exact_mut(8) {
        let code = u16::from_ne_bytes([instruction[0], instruction[1]]);
        let value = u32::from_ne_bytes([instruction[4], instruction[5], instruction[6], instruction[7]]);
        let number = if value == stand_in {
            pid as u32
        } else if value == stand_in.wrapping_neg() {
            (pid as u32).wrapping_neg()
        } else {
            continue;
        };
        if code == JUMP_IF_EQUAL {
            instruction[4..8].copy_from_slice(&number.to_ne_bytes());
        }
    }
    patched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_put_into_comparisons_alone() {
        let instruction = |code: u16, value: u32| [&code.to_ne_bytes()[..], &[0, 0], &value.to_ne_bytes()[..]].concat();
        let filter = [
            instruction(JUMP_IF_EQUAL, SUBREAPER),
            instruction(JUMP_IF_EQUAL, SUBREAPER.wrapping_neg()),
            instruction(6, SUBREAPER),
            instruction(JUMP_IF_EQUAL, SUPERVISOR),
        ]
        .concat();
        let expected = [
            instruction(JUMP_IF_EQUAL, 7),
            instruction(JUMP_IF_EQUAL, 7_u32.wrapping_neg()),
            instruction(6, SUBREAPER),
            instruction(JUMP_IF_EQUAL, SUPERVISOR),
        ]
        .concat();
        assert_eq!(put_in(&filter, SUBREAPER, 7), expected);
    }

    #[test]
    fn an_end_is_heard_as_it_was_told() {
        let (read, write) = sys::make_pipe().unwrap();
        sys::never_block(&read).unwrap();
        assert!(heard(&read).is_none());
        let usage = Usage { cpu_seconds: 0.25, max_rss_bytes: 4096 };
        sys::write_some(&write, &word(0, true, 9, usage)).unwrap();
        let (status, used) = heard(&read).unwrap();
        assert_eq!((status, used.cpu_seconds, used.max_rss_bytes), (Status::Killed(9), 0.25, 4096));
        drop(write);
        assert_eq!(heard(&read).unwrap().0, Status::Killed(9));
    }
}
