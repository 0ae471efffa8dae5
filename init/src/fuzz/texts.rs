//! Requests: JSON, and what the zygote is told without it.

use std::collections::BTreeSet;

use super::mutate::Random;
use super::Kind;
use crate::base64;
use crate::command::{fingerprint, Spec};
use crate::errors::Fields;
use crate::json::{self, Value};
use crate::zygote;

const MOST_REPAIRS: usize = 20;
/// Of what the parser says, and what would do.
const MISSING: [(&str, u8); 5] =
    [("'\"'", b'"'), ("without an end", b'"'), ("'}'", b'}'), ("']'", b']'), ("':'", b':')];

pub struct Requests;

impl Kind for Requests {
    fn name(&self) -> &'static str {
        "requests"
    }

    fn repair(&self, input: &mut Vec<u8>, random: &mut Random) {
        // What the parser misses is put in, or what it stops at is taken out.
        for _ in 0..MOST_REPAIRS {
            let why = match json::parse(input) {
                Ok(_) => return,
                Err(why) => why,
            };
            let at = why.rsplit(' ').next().and_then(|word| word.parse::<usize>().ok()).unwrap_or(0).min(input.len());
            let missing = MISSING.iter().find(|(what, _)| why.contains(what)).map_or(b'0', |(_, byte)| *byte);
            if at == input.len() || (missing != b'0' && random.one_in(2)) {
                input.insert(at, missing);
            } else {
                input.remove(at);
            }
        }
    }

    fn run(&mut self, input: &[u8]) {
        zygote::check(input);
        if let Some(data) = base64::decode(input) {
            assert_eq!(base64::encode(&data).len(), input.len());
            assert_eq!(base64::decode(&base64::encode(&data)), Some(data));
        }
        let value = match json::parse(input) {
            Ok(value) => value,
            Err(why) => return assert!(!why.is_empty() && why.len() < 100),
        };
        let written = value.to_bytes();
        let again = json::parse(&written).unwrap();
        assert_eq!(again, value, "read again it is another");
        assert_eq!(again.to_bytes(), written, "written again it is another");
        assert!(std::str::from_utf8(&written).is_ok());
        assert_eq!(fingerprint(&backwards(&value)), fingerprint(&again));
        check_fields(&value);
        check_spec(&value);
        if let Some(spec) = value.get("spec") {
            check_spec(spec);
        }
    }
}

/// The same with the members of each object the other way round, where no two have one name.
fn backwards(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(backwards).collect()),
        Value::Object(members) => {
            let names: BTreeSet<_> = members.iter().map(|(name, _)| name).collect();
            let mut members: Vec<_> = members.iter().map(|(name, own)| (name.clone(), backwards(own))).collect();
            if names.len() == members.len() {
                members.reverse();
            }
            Value::Object(members)
        }
        other => other.clone(),
    }
}

/// No field is read as another value than it has.
fn check_fields(value: &Value) {
    let members = match value {
        Value::Object(members) => members,
        Value::Array(items) => return items.iter().for_each(check_fields),
        _ => return,
    };
    let fields = Fields(value);
    for (name, _) in members {
        let name = match std::str::from_utf8(name) {
            Ok(name) => name,
            Err(_) => continue,
        };
        let own = value.get(name).unwrap();
        let float = match own {
            Value::Int(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        };
        match fields.int_or_none(name) {
            Ok(Some(number)) => assert_eq!(Some(number as f64), float, "{name:?}"),
            Ok(None) => assert_eq!(own, &Value::Null),
            Err(_) => {}
        }
        if let Ok(size) = fields.number_up_to(name, 65_535) {
            assert!(size <= 65_535 && Some(size as f64) == float);
        }
        assert_eq!(fields.number(name).ok(), float);
        assert_eq!(fields.text(name).is_ok(), matches!(own, Value::Text(_)));
        assert_eq!(fields.flag(name).is_ok(), matches!(own, Value::Bool(_)));
        if let (Ok(texts), Value::Array(items)) = (fields.texts(name), own) {
            assert_eq!(texts.len(), items.len());
        }
        if let (Ok(variables), Value::Object(members)) = (fields.variables(name), own) {
            assert_eq!(variables.len(), members.len());
        }
        check_fields(own);
    }
}

fn check_spec(value: &Value) {
    match Spec::read(value, fingerprint(value)) {
        Ok(spec) => {
            assert_eq!(value.get("exec_id"), Some(&Value::Text(spec.exec_id)));
            assert!(spec.cases.is_none() || spec.programs.is_none());
            if let Some(mut programs) = spec.programs {
                assert!(programs.series.len() > 0);
                while !programs.series.is_complete() {
                    programs.next_command();
                    programs.series.done += 1;
                }
                assert!(programs.next_command().is_empty() && programs.series.limit().is_none());
            }
        }
        Err(refused) => assert!(json::parse(&refused.body()).is_ok()),
    }
}
