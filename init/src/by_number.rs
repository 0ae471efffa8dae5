//! Who may change the limits, priority and processors of whom, where there are no namespaces.
//!
//! The kernel looks at uids alone, and all processes of the server's user have the sandbox's. Programs name themselves and their threads by
//! number, too (`pthread_setaffinity_np`, OpenMP, `renice $$`), and no filter can know those. So the filter has the kernel ask the
//! supervisor, which lets a call go on whose number is in the sandbox. The caller waits meanwhile, so that his own number means him. The
//! supervisor must not make such a call itself: nobody would answer it.

use std::os::unix::io::OwnedFd;

use crate::process_tree::Processes;
use crate::sys;

/// Answers for one sandbox.
pub struct ByNumber {
    pub asked: OwnedFd,
    /// The calls whose second argument is the number of a process; of all others it is the first.
    second: Vec<i64>,
}

impl ByNumber {
    pub fn new(asked: OwnedFd, second: Vec<i64>) -> ByNumber {
        ByNumber { asked, second }
    }

    /// Answers one question.
    pub fn answer(&self, processes: &Processes) {
        // Who asked may have been killed meanwhile, or has a signal to handle first.
        if let Ok(question) = sys::hear_question(&self.asked) {
            let [first, second] = question.arguments;
            let number = if self.second.contains(&question.call.into()) { second } else { first } as u32 as i32;
            let error = decide(processes, question.caller, number);
            drop(sys::answer_question(&self.asked, question.id, error));
        }
    }
}

/// The error that it gets, or 0.
fn decide(processes: &Processes, caller: i32, number: i32) -> i32 {
    let is_there = |path: String| sys::stat_at(processes.directory(), path.as_bytes()).is_ok();
    if number == 0 || number == caller || is_there(format!("{caller}/task/{number}")) || processes.has(number) {
        0
    } else if is_there(number.to_string()) {
        sys::EPERM
    } else {
        sys::ESRCH
    }
}
