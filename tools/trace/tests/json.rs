//! Lines of JSON, against the schema in the documentation.

mod common;

use std::collections::BTreeSet;

use anyring_chaos_plan::Fault;
use anyring_engine::ops;
use common::*;
use serde_json::Value;

const SCHEMA: &str = include_str!("../../../docs/trace-json.schema.json");
const PAGE: &str = include_str!("../../../docs/trace-json.md");

/// A stream with every kind of event that has a line.
fn stream() -> Stream {
    let mut stream = Stream::default();
    stream.started("/bin/cat", &["cat", "/etc/hosts"], 99);
    stream.ring();
    stream.put(Kind::RingMade, &RingMade { result: -22, flags: 1 << 30 | 2, ..RingMade::default() }, &[]);
    stream.named(4, "/etc/hosts");
    stream.named(5, "TCP 127.0.0.1:80");
    let read = Sqe { addr: 0x1000, len: 4096, flags: 4, user_data: u64::MAX, personality: 3, ..sqe(READ) };
    let first = stream.submitted(read, &[]);
    let second = stream.linked(first, sqe(READ), &[]);
    stream.stepped(first, Step::Deferred, 0);
    stream.stepped(first, Step::ByWorker, 1234);
    let data = attached(Content::Data, 0x1000, b"127.0.0.1 localhost");
    let completed = Completed { serial: first, user_data: u64::MAX, res: 19, ..Completed::default() };
    stream.posted(
        Completed { marks: LAST | OVERFLOWED, cq_ready: 16, flags: 1 | 7 << 16, ..completed },
        &[data],
    );
    stream.completed(second, -125);
    let accept = stream.submitted(sqe(ACCEPT), &[]);
    stream.posted(Completed { serial: accept, res: 5, flags: 2, ..Completed::default() }, &[]);
    let send = stream.submitted(sqe(SEND_ZC), &[]);
    stream.stepped(send, Step::InTrain, 3);
    stream.posted(Completed { serial: send, res: 10, flags: 2, marks: LAST, ..Completed::default() }, &[]);
    stream.posted(
        Completed { serial: send, res: i32::MIN, flags: 8, marks: CHANGED, ..Completed::default() },
        &[],
    );
    stream.posted(Completed { res: 1, ..Completed::default() }, &[]);
    stream.posted(Completed { serial: 77, res: 1, ..Completed::default() }, &[]);
    stream.put(Kind::Registered, &Registered { opcode: 9, result: -1, ..Registered::default() }, &[]);
    stream.entered(Entered { to_submit: 1, result: -4, flags: 1, duration_ns: 5, ..Entered::default() });
    let injected = Injected { call: 3, fault: Fault::EnterInterrupted as u32, reserved: 0 };
    stream.put(Kind::Injected, &injected, &[]);
    stream.put(Kind::Unseen, &Unseen { count: 2, why: UNSEEN_REAPED }, &[]);
    stream.put(Kind::RingEnded, &RingEnded { in_flight: 1, cq_ready: 2, reserved: 0 }, &[]);
    stream.ended();
    stream
}

/// A stream with every kind of event that has a line for a ring that is watched from outside.
fn watched() -> Stream {
    let mut stream = Stream::default();
    stream.put(Kind::RingFound, &RingFound { fd: 7, engine: ENGINE_KERNEL, ..RingFound::default() }, &[]);
    let serial = stream.submitted(sqe(READ), &[]);
    let lost = stream.submitted(sqe(READ), &[]);
    stream.posted(Completed { serial, res: 1, marks: LAST | SAMPLED | EARLIER, ..Completed::default() }, &[]);
    stream.put(Kind::LostSight, &LostSight { serial: lost }, &[]);
    for why in [UNSEEN_BETWEEN_LOOKS, UNSEEN_POSTED_BETWEEN_LOOKS, UNSEEN_REQUESTS_OF_COMPLETIONS] {
        stream.put(Kind::Unseen, &Unseen { count: 2, why }, &[]);
    }
    stream
}

fn lines(stream: &Stream) -> Vec<Value> {
    let text = stream.shown(Settings::default(), Session::json);
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// A checker for the part of JSON Schema that the schema uses; other keywords are a failure.
struct Schema(Value);

impl Schema {
    fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        for (keyword, wanted) in schema.as_object().expect("a schema is an object") {
            let holds = match keyword.as_str() {
                "$schema" | "title" | "$defs" | "additionalProperties" => true,
                "$ref" => {
                    let path = wanted.as_str().unwrap().strip_prefix('#').unwrap();
                    self.check(self.0.pointer(path).expect(path), value)?;
                    true
                }
                "oneOf" => self.one_of(wanted.as_array().unwrap(), value)?,
                "type" => match wanted.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "boolean" => value.is_boolean(),
                    other => panic!("type {other}"),
                },
                "const" => value == wanted,
                "enum" => wanted.as_array().unwrap().contains(value),
                "minimum" => value.as_i64().is_none_or(|value| value >= wanted.as_i64().unwrap()),
                "pattern" => {
                    assert_eq!(wanted, "^0x[0-9a-f]+$");
                    let digits = value.as_str().and_then(|value| value.strip_prefix("0x")).unwrap_or("");
                    let is_digit = |digit: char| matches!(digit, '0'..='9' | 'a'..='f');
                    !digits.is_empty() && digits.chars().all(is_digit)
                }
                "items" => {
                    value.as_array().unwrap().iter().try_for_each(|item| self.check(wanted, item))?;
                    true
                }
                "required" => {
                    let mut names = wanted.as_array().unwrap().iter();
                    names.all(|name| value.get(name.as_str().unwrap()).is_some())
                }
                "properties" => {
                    assert_eq!(schema["additionalProperties"], false);
                    for (name, value) in value.as_object().ok_or("no object")? {
                        let property = wanted.get(name).ok_or_else(|| format!("no property {name}"))?;
                        self.check(property, value).map_err(|error| format!("{name}: {error}"))?;
                    }
                    true
                }
                other => panic!("keyword {other}"),
            };
            if !holds {
                return Err(format!("{keyword} {wanted}: {value}"));
            }
        }
        Ok(())
    }

    fn one_of(&self, schemas: &[Value], value: &Value) -> Result<bool, String> {
        let (good, bad): (Vec<_>, Vec<_>) =
            schemas.iter().map(|schema| self.check(schema, value)).partition(Result::is_ok);
        if good.is_empty() { Err(format!("{bad:?}")) } else { Ok(good.len() == 1) }
    }
}

fn schema() -> Schema {
    Schema(serde_json::from_str(SCHEMA).unwrap())
}

fn check(value: &Value) -> Result<(), String> {
    let schema = schema();
    schema.check(&schema.0, value)
}

#[test]
fn every_line_is_as_the_schema_says() {
    let mut types = BTreeSet::new();
    for line in [lines(&stream()), lines(&watched())].concat() {
        check(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        types.insert(line["type"].as_str().unwrap().to_owned());
    }
    let known = schema().0["oneOf"].as_array().unwrap().len();
    assert_eq!(types.len(), known, "every type of line is among {types:?}");
    for kind in types {
        assert!(PAGE.contains(&format!("`{kind}`")), "{kind} is described");
    }
}

#[test]
fn every_operation_is_as_the_schema_says() {
    let mut stream = Stream::default();
    for op in ops::ROWS {
        let serial = stream
            .submitted(Sqe { ioprio: 1, off: 1, addr: 2, len: 3, op_flags: u32::MAX, ..sqe(op.code) }, &[]);
        stream.completed(serial, -22);
    }
    let lines = lines(&stream);
    assert_eq!(lines.len(), ops::TOTAL);
    for (line, op) in lines.iter().zip(ops::ROWS) {
        check(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(line["operation"], op.name);
        assert_eq!(line["result"]["error"], "EINVAL");
    }
}

#[test]
fn every_step_is_as_the_schema_says() {
    for step in (1..).map_while(Step::of) {
        let mut stream = Stream::default();
        let serial = stream.submitted(sqe(NOP), &[]);
        stream.stepped(serial, step, 0);
        stream.completed(serial, 0);
        let [line] = &lines(&stream)[..] else { panic!("one line") };
        assert_eq!(line["steps"][0]["step"], step.name());
        check(line)
            .unwrap_or_else(|error| panic!("docs/trace-json.schema.json does not list {step:?}: {error}"));
    }
}

#[test]
fn every_field_of_a_request_is_described() {
    let schema = schema();
    for of in ["request", "completion"] {
        for name in schema.0["$defs"][of]["properties"].as_object().unwrap().keys() {
            assert!(PAGE.contains(&format!("`{name}`")), "{name} is described");
        }
    }
}

#[test]
fn the_schema_refuses_what_is_wrong() {
    let line = lines(&stream()).into_iter().find(|line| line["type"] == "request").unwrap();
    let changed = |pointer: &str, value: Value| {
        let mut line = line.clone();
        *line.pointer_mut(pointer).unwrap() = value;
        check(&line)
    };
    check(&line).unwrap();
    changed("/state", "gone".into()).unwrap_err();
    changed("/serial", (-1).into()).unwrap_err();
    changed("/user_data", 7.into()).unwrap_err();
    changed("/type", "shot".into()).unwrap_err();
    changed("/result/res", "7".into()).unwrap_err();
    let mut missing = line.clone();
    missing.as_object_mut().unwrap().remove("text");
    check(&missing).unwrap_err();
    let mut more = line;
    more.as_object_mut().unwrap().insert("more".to_owned(), 1.into());
    check(&more).unwrap_err();
}

#[test]
fn what_it_says() {
    let lines: Vec<_> = lines(&stream()).iter().map(|line| format!("{line:#}")).collect();
    assert_snapshot!(lines.join("\n"));
}
