//! Mutated inputs for all that reads what others wrote: `aviato-init fuzz`, in a build of its own.
//!
//! A kind is a parser with what has to hold of it whatever it is given. A panic, too much memory or an input that takes too long
//! is a fault: its input is written to a file, by which it can be repeated.

mod archives;
mod mutate;
mod proc;
mod records;
mod texts;

use std::fs;
use std::io::Write;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::errors::Fields;
use crate::json;
use crate::sys::counted;
use mutate::Random;

const USAGE: &str = "\
usage: aviato-init fuzz [--seconds N] [--seed S] [--kind KIND] [--faults DIR]
       aviato-init fuzz --kind KIND --input FILE

Each kind has its share of the seconds. --input takes the one input that is in a file.
";
const USUAL_SECONDS: f64 = 20.0;
/// An input may take so much memory, and so many times its own size.
const MEMORY_BYTES: usize = 4 << 20;
const MEMORY_TIMES: usize = 256;
/// No input takes a hundredth of it; a machine that is busy makes any of them slow.
const LONGEST_SECONDS: u64 = 20;

/// A parser, and what has to hold of it.
trait Kind {
    /// Also that of its directory in the corpus.
    fn name(&self) -> &'static str;
    /// Makes of a mutated input one that comes further: sums and sizes that are right again.
    fn repair(&self, _input: &mut Vec<u8>, _random: &mut Random) {}
    /// Panics where something does not hold.
    fn run(&mut self, input: &[u8]);
}

fn kinds() -> Vec<Box<dyn Kind>> {
    vec![
        Box::new(records::Frames),
        Box::new(texts::Requests),
        Box::new(records::Cases::new()),
        Box::new(archives::Archives::new()),
        Box::new(proc::Proc::new()),
    ]
}

/// What runs now, for whoever reports a fault.
struct Current {
    kind: &'static str,
    seed: u64,
    number: u64,
    input: Vec<u8>,
    since: Instant,
}

static CURRENT: Mutex<Option<Current>> = Mutex::new(None);
/// Directories that are to be gone at the end.
static SCRATCHES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static FAULTS: Mutex<Option<PathBuf>> = Mutex::new(None);

pub fn main(flags: &[String]) -> Result<(), String> {
    let flag = |name: &str| flags.iter().position(|own| own == name).and_then(|at| flags.get(at + 1));
    if flags.iter().any(|flag| flag == "--help") || flags.len() % 2 != 0 {
        return Err(USAGE.to_owned());
    }
    *held(&FAULTS) = Some(
        flag("--faults").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/faults"), PathBuf::from),
    );
    let seconds = flag("--seconds").map_or(Ok(USUAL_SECONDS), |text| text.parse::<f64>());
    let seconds = seconds.map_err(|_| format!("--seconds needs a number\n{USAGE}"))?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let seed = match flag("--seed") {
        Some(text) => text.parse::<u64>().map_err(|_| format!("--seed needs a number\n{USAGE}"))?,
        None => time.into(),
    };
    let chosen: Vec<_> =
        kinds().into_iter().filter(|kind| flag("--kind").map_or(true, |name| name == kind.name())).collect();
    if chosen.is_empty() {
        return Err(USAGE.to_owned());
    }
    panic::set_hook(Box::new(|info| report(&info.to_string())));
    thread::spawn(watch);
    println!("seed {seed}");
    let share = seconds / chosen.len() as f64;
    for mut kind in chosen {
        if let Some(file) = flag("--input") {
            let input = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
            take(&mut *kind, (seed, 0), &input);
            println!("{}: nothing was wrong with {file}", kind.name());
            continue;
        }
        let corpus = Corpus::read(kind.name())?;
        let began = Instant::now();
        let mut count = 0;
        corpus.inputs.iter().for_each(|input| take(&mut *kind, (seed, 0), input));
        while began.elapsed().as_secs_f64() < share {
            let input = corpus.input(&*kind, seed, count);
            take(&mut *kind, (seed, count), &input);
            count += 1;
        }
        let rate = count as f64 / began.elapsed().as_secs_f64();
        println!("{}: {count} inputs, {rate:.0} a second", kind.name());
    }
    Ok(())
}

/// What inputs of a kind are made of.
struct Corpus {
    /// Its files, in the order of their names.
    inputs: Vec<Vec<u8>>,
    /// Are put into inputs.
    words: Vec<Vec<u8>>,
}

impl Corpus {
    fn read(kind: &str) -> Result<Corpus, String> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let failed = |error: std::io::Error| format!("the corpus {}: {error}", top.display());
        let words = json::parse(&fs::read(top.join("words.json")).map_err(failed)?)?;
        let words = Fields(&words).texts(kind).map_err(|_| format!("words.json has nothing for {kind}"))?;
        let entries = fs::read_dir(top.join(kind)).map_err(failed)?;
        let mut paths =
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        paths.sort();
        let inputs = paths.iter().map(fs::read).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        Ok(Corpus { inputs, words })
    }

    fn input(&self, kind: &dyn Kind, seed: u64, number: u64) -> Vec<u8> {
        let mut random = Random::new(seed, number);
        let mut input = mutate::mutated(self, &mut random);
        if !random.one_in(8) {
            kind.repair(&mut input, &mut random);
        }
        input
    }
}

/// Runs one input.
fn take(kind: &mut dyn Kind, (seed, number): (u64, u64), input: &[u8]) {
    let name = kind.name();
    *held(&CURRENT) = Some(Current { kind: name, seed, number, input: input.to_vec(), since: Instant::now() });
    let most = counted::most_during(|| kind.run(input));
    let bound = MEMORY_BYTES + MEMORY_TIMES * input.len();
    assert!(most <= bound, "an input of {} bytes took {most} bytes of memory", input.len());
    *held(&CURRENT) = None;
}

/// Of what is held for a moment only, by whoever does not panic meanwhile.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Reports an input that does not end.
fn watch() {
    loop {
        thread::sleep(Duration::from_secs(1));
        let late = held(&CURRENT).as_ref().map_or(false, |current| current.since.elapsed().as_secs() > LONGEST_SECONDS);
        if late {
            report(&format!("an input took more than {LONGEST_SECONDS} s"));
        }
    }
}

/// Says what is wrong and by which input, and ends.
fn report(what: &str) {
    eprintln!("{what}");
    if let Some(Current { kind, seed, number, input, .. }) = held(&CURRENT).take() {
        let directory = held(&FAULTS).clone().unwrap_or_default();
        let path = directory.join(format!("{kind}-{seed}-{number}"));
        let written = fs::create_dir_all(&directory).and_then(|()| fs::write(&path, &input));
        eprintln!("kind {kind}, seed {seed}, input {number}; again: fuzz --kind {kind} --input {}", path.display());
        if let Err(error) = written {
            eprintln!("the input could not be written ({error}): {input:?}");
        }
    }
    for path in held(&SCRATCHES).iter() {
        drop(fs::remove_dir_all(path));
    }
    drop(std::io::stdout().flush());
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_hold_holds_of_the_corpus_and_a_little_more() {
        for mut kind in kinds() {
            let corpus = Corpus::read(kind.name()).unwrap();
            corpus.inputs.iter().for_each(|input| kind.run(input));
            for number in 0..200 {
                let input = corpus.input(&*kind, 1, number);
                kind.run(&input);
            }
        }
    }

    #[test]
    fn a_seed_and_a_number_give_one_input() {
        for kind in kinds() {
            let corpus = Corpus::read(kind.name()).unwrap();
            let inputs: Vec<_> = (0..50).map(|number| corpus.input(&*kind, 7, number)).collect();
            assert!((0..50).all(|number| corpus.input(&*kind, 7, number) == inputs[number as usize]));
            let others = (0..50).filter(|number| corpus.input(&*kind, 8, *number) != inputs[*number as usize]);
            assert!(others.count() > 25);
        }
    }
}
