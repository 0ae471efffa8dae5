//! Frames, and the records of a program that runs cases.

use super::mutate::Random;
use super::Kind;
use crate::cases::{self, RECORD};
use crate::command::{Command, Spec};
use crate::event_loop::EventLoop;
use crate::frames::{Decoder, Head, Sink, DATA, HEAD_BYTES, MOST_PAYLOAD_BYTES};
use crate::json::{self, Value};
use crate::spawn::{CaseEnds, Ends};
use crate::successive::Next;
use crate::sys::{self, Status, Usage};

pub struct Frames;

#[derive(Default)]
struct Seen {
    frames: Vec<(Head, Vec<u8>)>,
    odd_in_pieces: bool,
}

impl Sink for Seen {
    fn in_pieces(&self, channel: u16) -> bool {
        self.odd_in_pieces && channel % 2 == 1
    }
    fn frame(&mut self, head: Head, payload: &[u8]) {
        self.frames.push((head, payload.to_vec()));
    }
}

/// What comes of a stream in pieces of such sizes, and whether it is one.
fn decoded(input: &[u8], odd_in_pieces: bool, mut size: impl FnMut() -> usize) -> (Vec<(Head, Vec<u8>)>, bool) {
    let (mut decoder, mut seen, mut rest) = (Decoder::default(), Seen { odd_in_pieces, ..Seen::default() }, input);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(size().clamp(1, rest.len()));
        rest = behind;
        if decoder.feed(piece, &mut seen).is_err() {
            return (seen.frames, false);
        }
    }
    (seen.frames, true)
}

/// Data of one stream that follows other is one frame with it.
fn joined(frames: Vec<(Head, Vec<u8>)>) -> Vec<(Head, Vec<u8>)> {
    let mut joined: Vec<(Head, Vec<u8>)> = Vec::new();
    for (head, payload) in frames {
        match joined.last_mut() {
            Some((last, data))
                if head.kind == DATA
                    && head == (Head { offset: last.offset.wrapping_add(data.len() as u64), ..*last }) =>
            {
                data.extend(payload);
            }
            _ => joined.push((head, payload)),
        }
    }
    joined
}

fn length_at(input: &[u8], at: usize) -> Option<usize> {
    let bytes = input.get(at + 4..at + 8).filter(|_| at + HEAD_BYTES <= input.len())?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
}

impl Kind for Frames {
    fn name(&self) -> &'static str {
        "frames"
    }

    fn repair(&self, input: &mut Vec<u8>, random: &mut Random) {
        let mut at = 0;
        while let Some(length) = length_at(input, at) {
            let left = input.len() - at - HEAD_BYTES;
            if length > left && !random.one_in(8) {
                let fits = random.below(left + 1);
                input[at + 4..at + 8].copy_from_slice(&(fits as u32).to_be_bytes());
            }
            at += HEAD_BYTES + length_at(input, at).unwrap_or(0);
        }
    }

    fn run(&mut self, input: &[u8]) {
        let mut random = Random::of(input);
        let (whole, sound) = decoded(input, false, || usize::MAX);
        assert_eq!(decoded(input, false, || 1), (whole.clone(), sound), "byte by byte");
        assert_eq!(decoded(input, false, || random.below(40)), (whole.clone(), sound), "in pieces");
        let written: Vec<u8> =
            whole.iter().flat_map(|(head, payload)| [&head.encode(payload.len())[..], payload].concat()).collect();
        assert!(input.starts_with(&written), "written again it is another");
        let next = length_at(input, written.len());
        assert_eq!(sound, next.map_or(true, |length| length <= MOST_PAYLOAD_BYTES));
        let left = input.len() - written.len();
        assert!(!sound || next.map_or(true, |length| left < HEAD_BYTES + length), "a whole frame was kept");
        let (pieces, same) = decoded(input, true, || random.below(40));
        assert_eq!(same, sound);
        // Of the last frame a part may have been handed on.
        let (whole, pieces) = (joined(whole), joined(pieces));
        assert!(pieces.len() == whole.len() || pieces.len() == whole.len() + 1);
        for (number, (piece, frame)) in pieces.iter().zip(&whole).enumerate() {
            assert!(piece.0 == frame.0 && piece.1.starts_with(&frame.1));
            assert!(piece.1.len() == frame.1.len() || number + 1 == whole.len());
        }
    }
}

const TOKEN: &[u8] = b"0123456789abcdef";
const SPEC: &[u8] = br#"{"exec_id":"c","command":["x"],"environment":{},"stdin":false,"cases":
{"token":"0123456789abcdef","output_bytes":100,"report_bytes":50,"reports":true,"timeout_seconds":[null,1,0.5,9]}}"#;
/// Of the input, before each of which something may be printed.
const PIECE_BYTES: usize = 5000;

pub struct Cases {
    spec: Value,
}

impl Cases {
    pub fn new() -> Cases {
        Cases { spec: json::parse(SPEC).unwrap() }
    }
}

impl Kind for Cases {
    fn name(&self) -> &'static str {
        "cases"
    }

    fn repair(&self, input: &mut Vec<u8>, _random: &mut Random) {
        // Each record gets the size that it has.
        let begins: Vec<usize> =
            (0..input.len()).filter(|at| input[*at..].starts_with(TOKEN)).chain([input.len()]).collect();
        for pair in begins.windows(2) {
            let body = pair[0] + TOKEN.len() + 8;
            if body <= pair[1] {
                let size = format!("{:8}", pair[1] - body);
                input[body - 8..body].copy_from_slice(size.as_bytes());
            }
        }
    }

    fn run(&mut self, input: &[u8]) {
        let mut random = Random::of(input);
        let mut looper = EventLoop::new().unwrap();
        let mut spec = Spec::read(&self.spec, 0).unwrap();
        let mut cases: Box<cases::Cases> = spec.cases.take().unwrap();
        let mut command = Command::new(1, &spec, Ends::none(), &mut looper);
        let mut rest = input;
        let mut next = Next::Renew;
        while next == Next::Renew {
            let pipes: Vec<_> = (0..5).map(|_| sys::make_pipe().unwrap()).collect();
            pipes.iter().for_each(|(read, _)| sys::never_block(read).unwrap());
            let (mut reads, mut writes): (Vec<_>, Vec<_>) = pipes.into_iter().map(|(r, w)| (Some(r), Some(w))).unzip();
            let mut read = |at: usize| reads[at].take().unwrap();
            let ends = CaseEnds {
                stdout: read(0),
                stderr: read(1),
                report: Some(read(2)),
                record: read(3),
                go: writes[4].take().unwrap(),
            };
            let told = read(4);
            cases.started(ends, &mut command, &mut looper);
            let last = if random.one_in(3) { random.below(rest.len() + 1) } else { rest.len() };
            let (mut now, later) = rest.split_at(last);
            rest = later;
            while !now.is_empty() {
                let (piece, behind) = now.split_at((1 + random.below(PIECE_BYTES)).min(now.len()));
                now = behind;
                if let Some(printed) = &writes[random.below(3)] {
                    sys::write_all(printed, piece).unwrap();
                }
                sys::write_all(writes[3].as_ref().unwrap(), piece).unwrap();
                let mut go = [0; 64];
                for which in [RECORD, 0, 1, 2, RECORD] {
                    cases.happened(which, &mut command, &mut looper);
                    if sys::unread_bytes(&told) > 0 {
                        sys::read_some(&told, &mut go).unwrap();
                    }
                }
            }
            if random.one_in(2) {
                writes[3] = None;
                cases.happened(RECORD, &mut command, &mut looper);
            } else if random.one_in(4) {
                cases.too_late(&mut command, &mut looper);
            }
            let status = if random.one_in(2) { Status::Exited(0) } else { Status::Killed(9) };
            next = cases.reaped(status, Usage::default(), &mut command, &mut looper);
        }
        assert!(cases.series.done <= cases.series.len());
        check_verdicts(&command.outputs[0].rest(), cases.series.done, cases.series.is_complete(), input);
        cases.close(&mut command, &mut looper);
    }
}

fn check_verdicts(printed: &[u8], done: usize, complete: bool, input: &[u8]) {
    let lines: Vec<&[u8]> = printed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), done + usize::from(complete), "a line for each verdict, and a last one");
    let mut passed = 0;
    for line in &lines[..done] {
        let verdict = json::parse(line).unwrap();
        assert_eq!(verdict.to_bytes(), *line);
        passed += usize::from(verdict.get("passed") == Some(&Value::Bool(true)));
    }
    let told = input.windows(6).filter(|part| part == b"passed").count();
    assert!(passed <= told, "{passed} cases passed, of which {told} say so");
}
