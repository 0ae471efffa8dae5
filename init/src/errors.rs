//! What a request gets instead of a reply.

use std::io;

use crate::json::{object, Value};
use crate::sys;

#[derive(Clone, Debug)]
pub struct Refused {
    pub code: &'static str,
    pub message: Vec<u8>,
    pub reason: &'static str,
    pub filepath: Option<Vec<u8>>,
    pub is_infrastructure: bool,
    pub retryable: bool,
}

impl Refused {
    pub fn new(code: &'static str, reason: &'static str, message: impl Into<Vec<u8>>) -> Refused {
        let message = message.into();
        Refused { code, message, reason, filepath: None, is_infrastructure: false, retryable: false }
    }

    /// A request that makes no sense.
    pub fn invalid(message: impl Into<Vec<u8>>) -> Refused {
        Refused::new("VALIDATION", "invalid", message)
    }

    /// What was said before is lost, or said somewhere else now.
    pub fn unavailable(reason: &'static str, message: &str, retryable: bool) -> Refused {
        Refused { is_infrastructure: true, retryable, ..Refused::new("UNAVAILABLE", reason, message) }
    }

    pub fn unknown_exec(exec_id: &[u8]) -> Refused {
        let message = format!("the sandbox knows no command '{}'", String::from_utf8_lossy(exec_id));
        Refused::new("EXEC_NOT_FOUND", "exec_not_found", message)
    }

    pub fn file(path: &[u8], reason: &'static str, message: impl AsRef<[u8]>) -> Refused {
        let message = [b"'", path, b"': ", message.as_ref()].concat();
        Refused { filepath: Some(path.to_vec()), ..Refused::new("FILE", reason, message) }
    }

    /// What the kernel says of a path.
    pub fn os(path: &[u8], error: &io::Error) -> Refused {
        let number = sys::number_of(error);
        let message = if is_of_the_kernel(error) {
            OF_THE_KERNEL.to_owned()
        } else if number == 0 {
            error.to_string()
        } else {
            sys::describe(number)
        };
        let reason = if is_of_the_kernel(error) { "not_a_regular_file" } else { reason_of(number) };
        Refused::file(path, reason, message)
    }

    /// As `wire.errors.ErrorBody`.
    pub fn body(&self) -> Vec<u8> {
        let mut body = object([
            ("code", self.code.into()),
            ("message", Value::Text(self.message.clone())),
            ("reason", self.reason.into()),
        ]);
        if let Some(path) = &self.filepath {
            body = body.with([("filepath", Value::Text(path.clone()))]);
        }
        if self.is_infrastructure {
            body = body.with([("retryable", self.retryable.into()), ("is_infrastructure", true.into())]);
        }
        body.to_bytes()
    }
}

const OF_THE_KERNEL: &str = "the kernel's, and no file of the sandbox: a command can read it, if anybody may";

/// The error of what is the kernel's, or seen by way of what process 1 has, and no file of the sandbox.
pub fn of_the_kernel() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, OF_THE_KERNEL)
}

fn is_of_the_kernel(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.kind() == io::ErrorKind::Unsupported
}

pub fn reason_of(number: i32) -> &'static str {
    match number {
        sys::ENOENT => "no_such_file",
        sys::EISDIR => "is_a_directory",
        sys::ENOTDIR => "not_a_directory",
        sys::EACCES | sys::EPERM => "permission_denied",
        sys::EEXIST => "file_exists",
        sys::ENOTEMPTY => "directory_not_empty",
        sys::EFBIG => "too_large",
        sys::ENOSPC | sys::EDQUOT => "disk_full",
        sys::EROFS => "read_only",
        sys::ENXIO => "not_a_regular_file",
        sys::EAGAIN => "timeout",
        _ => "file",
    }
}

/// 2⁶³: a number that is written with a point or an exponent is whole only below it.
const LARGEST: f64 = -(i64::MIN as f64);

/// Names and values.
pub type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// The fields of a request.
pub struct Fields<'a>(pub &'a Value);

impl<'a> Fields<'a> {
    fn wrong(name: &str) -> Refused {
        Refused::invalid(format!("a malformed request: {name:?}"))
    }

    fn present(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| **value != Value::Null)
    }

    pub fn value(&self, name: &str) -> Result<&'a Value, Refused> {
        self.0.get(name).ok_or_else(|| Fields::wrong(name))
    }

    pub fn text_or_none(&self, name: &str) -> Result<Option<&'a [u8]>, Refused> {
        match self.present(name) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(Fields::wrong(name)),
        }
    }

    pub fn text(&self, name: &str) -> Result<&'a [u8], Refused> {
        self.text_or_none(name)?.ok_or_else(|| Fields::wrong(name))
    }

    pub fn int_or_none(&self, name: &str) -> Result<Option<i64>, Refused> {
        match self.present(name) {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(*value)),
            // One that an integer has no room for would become another.
            Some(Value::Float(value)) if value.fract() == 0.0 && value.abs() < LARGEST => Ok(Some(*value as i64)),
            Some(_) => Err(Fields::wrong(name)),
        }
    }

    pub fn int(&self, name: &str) -> Result<i64, Refused> {
        self.int_or_none(name)?.ok_or_else(|| Fields::wrong(name))
    }

    pub fn size_or_none(&self, name: &str) -> Result<Option<u64>, Refused> {
        self.int_or_none(name)?.map(|value| u64::try_from(value).map_err(|_| Fields::wrong(name))).transpose()
    }

    pub fn size(&self, name: &str) -> Result<u64, Refused> {
        self.size_or_none(name)?.ok_or_else(|| Fields::wrong(name))
    }

    /// A whole number from 0 to `most`: one that is cut would be another.
    pub fn number_up_to(&self, name: &str, most: u64) -> Result<u64, Refused> {
        Some(self.size(name)?).filter(|number| *number <= most).ok_or_else(|| Fields::wrong(name))
    }

    pub fn number_or_none(&self, name: &str) -> Result<Option<f64>, Refused> {
        match self.present(name) {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(*value as f64)),
            Some(Value::Float(value)) => Ok(Some(*value)),
            Some(_) => Err(Fields::wrong(name)),
        }
    }

    pub fn number(&self, name: &str) -> Result<f64, Refused> {
        self.number_or_none(name)?.ok_or_else(|| Fields::wrong(name))
    }

    pub fn flag(&self, name: &str) -> Result<bool, Refused> {
        self.flag_or(name, None)
    }

    /// A flag that may be left out, with what it means then.
    pub fn flag_or(&self, name: &str, otherwise: Option<bool>) -> Result<bool, Refused> {
        match self.present(name) {
            Some(Value::Bool(value)) => Ok(*value),
            None => otherwise.ok_or_else(|| Fields::wrong(name)),
            Some(_) => Err(Fields::wrong(name)),
        }
    }

    /// A list of strings.
    pub fn texts(&self, name: &str) -> Result<Vec<Vec<u8>>, Refused> {
        match self.value(name)? {
            Value::Array(items) => items
                .iter()
                .map(|item| match item {
                    Value::Text(text) => Ok(text.clone()),
                    _ => Err(Fields::wrong(name)),
                })
                .collect(),
            _ => Err(Fields::wrong(name)),
        }
    }

    /// An object of strings.
    pub fn variables(&self, name: &str) -> Result<Variables, Refused> {
        match self.value(name)? {
            Value::Object(members) => members
                .iter()
                .map(|(own, value)| match value {
                    Value::Text(text) => Ok((own.clone(), text.clone())),
                    _ => Err(Fields::wrong(name)),
                })
                .collect(),
            _ => Err(Fields::wrong(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_does_not_fit_is_refused() {
        for (number, expected) in
            [(2.0, Some(2)), (-1e18, Some(-1_000_000_000_000_000_000)), (1e19, None), (-1e300, None)]
        {
            let request = object([("size", number.into())]);
            assert_eq!(Fields(&request).int("size").ok(), expected, "{number}");
        }
    }
}
