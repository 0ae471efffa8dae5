//! JSON, as requests and answers have it.
//!
//! A string is bytes: what is no UTF-8 travels as lone surrogates, U+DC80 and on for 0x80 and on, as Python writes the names of
//! files and the words of commands.

use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

const DEEPEST: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Vec<u8>),
    Array(Vec<Value>),
    /// In the order in which the members were written.
    Object(Vec<(Vec<u8>, Value)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }
}

impl From<&[u8]> for Value {
    fn from(text: &[u8]) -> Value {
        Value::Text(text.to_vec())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl From<i32> for Value {
    fn from(value: i32) -> Value {
        Value::Int(value.into())
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Int(value.min(i64::MAX as u64) as i64)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Float(value)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

/// An object of these members.
pub fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name.as_bytes().to_vec(), value)).collect())
}

impl Value {
    /// A member of an object; of two of one name the last.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Object(members) => {
                members.iter().rev().find(|(own, _)| own == name.as_bytes()).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// Adds members to an object, or gives those that it has other values.
    pub fn with<const N: usize>(mut self, more: [(&str, Value); N]) -> Value {
        if let Value::Object(members) = &mut self {
            for (name, value) in more {
                match members.iter_mut().find(|(own, _)| own == name.as_bytes()) {
                    Some(member) => member.1 = value,
                    None => members.push((name.as_bytes().to_vec(), value)),
                }
            }
        }
        self
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Null => out.extend_from_slice(b"null"),
            Value::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Value::Int(value) => put(out, format_args!("{value}")),
            Value::Float(value) if value.is_finite() => put(out, format_args!("{value:?}")),
            Value::Float(_) => out.extend_from_slice(b"null"),
            Value::Text(text) => write_text(text, out),
            Value::Array(items) => {
                out.push(b'[');
                for (number, item) in items.iter().enumerate() {
                    if number > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Value::Object(members) => {
                out.push(b'{');
                for (number, (name, value)) in members.iter().enumerate() {
                    if number > 0 {
                        out.push(b',');
                    }
                    write_text(name, out);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

/// Equal whatever the order of an object's members.
impl Hash for Value {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        std::mem::discriminant(self).hash(hasher);
        match self {
            Value::Null => {}
            Value::Bool(value) => value.hash(hasher),
            Value::Int(value) => value.hash(hasher),
            Value::Float(value) => value.to_bits().hash(hasher),
            Value::Text(text) => text.hash(hasher),
            Value::Array(items) => items.hash(hasher),
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by(|one, other| one.0.cmp(&other.0));
                members.hash(hasher);
            }
        }
    }
}

fn put(out: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = text.write_fmt(arguments);
    out.extend_from_slice(text.as_bytes());
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text;
    while !rest.is_empty() {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                write_valid(valid, out);
                break;
            }
            Err(error) => {
                let (valid, invalid) = rest.split_at(error.valid_up_to());
                // It was just found to be valid.
                write_valid(std::str::from_utf8(valid).unwrap_or(""), out);
                let bad = error.error_len().unwrap_or(invalid.len());
                for byte in &invalid[..bad] {
                    put(out, format_args!("\\udc{byte:02x}"));
                }
                rest = &invalid[bad..];
            }
        }
    }
    out.push(b'"');
}

fn write_valid(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f | 0x7f)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            byte => put(out, format_args!("\\u{byte:04x}")),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Reads one value, and nothing behind it.
///
/// # Errors
/// What is wrong, and where.
pub fn parse(data: &[u8]) -> Result<Value, String> {
    let mut parser = Parser { data, at: 0 };
    let value = parser.value(0)?;
    parser.skip_blanks();
    if parser.at < data.len() {
        return Err(parser.wrong("something behind the value"));
    }
    Ok(value)
}

struct Parser<'a> {
    data: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn wrong(&self, what: &str) -> String {
        format!("{what} at byte {}", self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.data.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.peek() != Some(byte) {
            return Err(self.wrong(&format!("no {:?}", char::from(byte))));
        }
        self.at += 1;
        Ok(())
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, String> {
        if !self.data[self.at..].starts_with(word.as_bytes()) {
            return Err(self.wrong("no value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > DEEPEST {
            return Err(self.wrong("too deep"));
        }
        self.skip_blanks();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.text().map(Value::Text),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.wrong("no value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, String> {
        self.at += 1;
        let mut members = Vec::new();
        self.skip_blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(members));
        }
        loop {
            self.skip_blanks();
            let name = self.text()?;
            self.skip_blanks();
            self.expect(b':')?;
            members.push((name, self.value(depth + 1)?));
            self.skip_blanks();
            if self.peek() != Some(b',') {
                break;
            }
            self.at += 1;
        }
        self.expect(b'}')?;
        Ok(Value::Object(members))
    }

    fn array(&mut self, depth: usize) -> Result<Value, String> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.skip_blanks();
            if self.peek() != Some(b',') {
                break;
            }
            self.at += 1;
        }
        self.expect(b']')?;
        Ok(Value::Array(items))
    }

    fn number(&mut self) -> Result<Value, String> {
        let begin = self.at;
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.data[begin..self.at]).unwrap_or("");
        if let Ok(value) = text.parse::<i64>() {
            return Ok(Value::Int(value));
        }
        // Others write numbers in ways that JSON does not have.
        let is_plain = text.split(&['.', 'e', 'E'][..]).all(|part| part.ends_with(|last: char| last.is_ascii_digit()));
        match text.parse::<f64>() {
            Ok(value) if is_plain && value.is_finite() => Ok(Value::Float(value)),
            _ => Err(self.wrong("no number")),
        }
    }

    fn text(&mut self) -> Result<Vec<u8>, String> {
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            let begin = self.at;
            while matches!(self.peek(), Some(byte) if byte != b'"' && byte != b'\\' && byte >= 0x20) {
                self.at += 1;
            }
            let plain = &self.data[begin..self.at];
            if std::str::from_utf8(plain).is_err() {
                return Err(self.wrong("bytes that are no UTF-8"));
            }
            text.extend_from_slice(plain);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(&mut text)?;
                }
                _ => return Err(self.wrong("a string without an end")),
            }
        }
    }

    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), String> {
        let byte = self.peek().ok_or_else(|| self.wrong("a string without an end"))?;
        self.at += 1;
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode(text),
            _ => return Err(self.wrong("an unknown escape")),
        };
        text.push(plain);
        Ok(())
    }

    fn unicode(&mut self, text: &mut Vec<u8>) -> Result<(), String> {
        let first = self.unit()?;
        if (0xD800..0xDC00).contains(&first) && self.data[self.at..].starts_with(b"\\u") {
            let begin = self.at;
            self.at += 2;
            let second = self.unit()?;
            if (0xDC00..0xE000).contains(&second) {
                return self.push(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00), text);
            }
            self.at = begin;
        }
        match first {
            0xDC80..=0xDCFF => {
                text.push((first - 0xDC00) as u8);
                Ok(())
            }
            _ => self.push(first, text),
        }
    }

    fn push(&self, code: u32, text: &mut Vec<u8>) -> Result<(), String> {
        let character = char::from_u32(code).ok_or_else(|| self.wrong("half a surrogate"))?;
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    fn unit(&mut self) -> Result<u32, String> {
        let digits = self.data.get(self.at..self.at + 4).ok_or_else(|| self.wrong("half an escape"))?;
        let mut value = 0;
        for digit in digits {
            value = value << 4 | char::from(*digit).to_digit(16).ok_or_else(|| self.wrong("no hexadecimal"))?;
        }
        self.at += 4;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::DefaultHasher;

    use super::*;

    fn again(text: &str) -> String {
        String::from_utf8(parse(text.as_bytes()).unwrap().to_bytes()).unwrap()
    }

    #[test]
    fn comes_back_as_it_was() {
        for text in
            ["null", "[true,false,-7,0.25]", r#"{"a":{"b":[]},"c":""}"#, r#""\"\\\n\u0001é😀""#, r#""\udcff\udc80""#]
        {
            assert_eq!(again(text), text);
        }
        assert_eq!(again(r#" { "a" : [ 1 , 2 ] } "#), r#"{"a":[1,2]}"#);
        assert_eq!(again(r#""\ud83d\ude00\/""#), "\"😀/\"");
        assert_eq!(again("1e3"), "1000.0");
    }

    #[test]
    fn bytes_that_are_no_text_travel() {
        assert_eq!(parse(br#""a\udcffb""#).unwrap(), Value::Text(b"a\xffb".to_vec()));
        assert_eq!(Value::Text(b"a\xffb\xe2\x82".to_vec()).to_bytes(), br#""a\udcffb\udce2\udc82""#);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for text in [
            &b""[..],
            b"{",
            b"[1,]",
            b"{\"a\"}",
            b"{\"a\":1,}",
            b"\"\\x\"",
            b"\"\\u12\"",
            b"\"\\ud800\"",
            b"\"a",
            b"\"\xff\"",
            b"\"\x01\"",
            b"nul",
            b"1 2",
            b"--1",
            b"1e999",
            b"1.",
            b"-.5",
            b"1.e5",
            b"truex",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse(&[b'['; 5000]).is_err());
        let deep = [vec![b'['; 2000], vec![b']'; 2000]].concat();
        assert!(parse(&deep).is_err());
    }

    #[test]
    fn the_last_of_one_name_counts() {
        let value = parse(br#"{"a":1,"a":2}"#).unwrap();
        assert_eq!(value.get("a"), Some(&Value::Int(2)));
        assert_eq!(value.get("b"), None);
    }

    #[test]
    fn the_order_of_members_is_nothing_to_a_hash() {
        let of = |text: &str| {
            let mut hasher = DefaultHasher::new();
            parse(text.as_bytes()).unwrap().hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(of(r#"{"b":[{"d":1,"c":2}],"a":null}"#), of(r#"{"a":null,"b":[{"c":2,"d":1}]}"#));
        let others = [
            r#"{"a":null}"#,
            r#"{"a":"b"}"#,
            r#"{"ab":""}"#,
            "[1,2]",
            "[2,1]",
            "[[1],2]",
            "[1,[2]]",
            "1",
            "1.0",
            "true",
        ];
        for (at, one) in others.iter().enumerate() {
            assert!(others[at + 1..].iter().all(|other| of(one) != of(other)), "{one}");
        }
    }
}
