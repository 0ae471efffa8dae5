//! Texts of /proc and of control groups. Most are the kernel's; the names of programs in them are anybody's.

use std::fs;
use std::os::unix::fs::symlink;

use super::archives::{opened, Scratch};
use super::Kind;
use crate::limits::cgroup::Group;
use crate::limits::memory::{number, resident_bytes, rough_bytes, Shares};
use crate::limits::sysv;
use crate::process_tree::Processes;
use crate::sys::{self, AT_FDCWD, O_RDONLY};

const FILES: [&str; 9] = [
    "7/stat",
    "7/status",
    "7/statm",
    "7/smaps_rollup",
    "7/task/7/statm",
    "7/task/7/children",
    "sysvipc/shm",
    "sysvipc/sem",
    "sysvipc/msg",
];
const LONGEST_NAME: usize = 15;

/// A directory like /proc with one process, each of whose files is the input.
pub struct Proc {
    scratch: Scratch,
    processes: Processes,
}

impl Proc {
    pub fn new() -> Proc {
        let scratch = Scratch::new("aviato-fuzz-proc");
        for directory in ["7/task/7", "sysvipc"] {
            fs::create_dir_all(scratch.0.join(directory)).unwrap();
        }
        for name in FILES {
            symlink(scratch.0.join("text"), scratch.0.join(name)).unwrap();
        }
        let processes = Processes::of(opened(&scratch.0));
        Proc { scratch, processes }
    }

    fn show(&self, text: &[u8]) {
        fs::write(self.scratch.0.join("text"), text).unwrap();
    }
}

impl Kind for Proc {
    fn name(&self) -> &'static str {
        "proc"
    }

    fn run(&mut self, input: &[u8]) {
        self.show(input);
        let processes = &self.processes;
        let living = processes.parent(7, false);
        assert!(living.is_none() || living == processes.parent(7, true));
        assert!(processes.told(7, "stat").map_or(false, |text| input.starts_with(&text)));
        processes.is_stopped(7);
        processes.is_traced(7);
        assert!(processes.children(7).len() <= input.len());
        resident_bytes(processes, 7);
        assert!(rough_bytes(processes, 7, true) >= rough_bytes(processes, 7, false));
        let mut shares = Shares::default();
        shares.add(processes, 7, 1, 1);
        shares.add(processes, 7, u64::MAX, 1);
        assert!(shares.total(0) >= 2 && shares.pids[&None] == [7, 7]);
        sysv::used_bytes(processes);
        let text = self.scratch.0.join("text");
        let open = || sys::open_at(AT_FDCWD, text.to_str().unwrap().as_bytes(), O_RDONLY, 0).unwrap();
        for most in [None, Some(open())] {
            let mut group = Group::new(open(), most);
            group.limit = number(input, b"\nmax ");
            group.has_killed();
            assert!(!group.has_killed(), "nothing has happened since");
        }
        // Whatever the name of a program is, the rest is the kernel's.
        let name: Vec<u8> = input.iter().rev().copied().filter(|byte| *byte != 0).take(LONGEST_NAME).collect();
        for (state, dead, stopped) in [("T", false, true), ("Z", true, false), ("S", false, false)] {
            self.show(&[b"7 (", &name[..], format!(") {state} 5 7 7 0 -1 0\n").as_bytes()].concat());
            let parent = (self.processes.parent(7, true), self.processes.parent(7, false));
            assert_eq!(parent, (Some(5), if dead { None } else { Some(5) }), "a program named {name:?}");
            assert_eq!(self.processes.is_stopped(7), stopped, "a program named {name:?}");
        }
    }
}
