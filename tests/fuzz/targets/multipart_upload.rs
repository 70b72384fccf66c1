//! A form of files, as the guest takes it from a client.
//!
//! The first byte says how large the pieces are that the form arrives in, the second what the rest is: the body of a form,
//! the `Content-Type` of one, or names and contents of files that a well-formed body is made of.
//!
//! A form means the same however it is cut; each file goes to an absolute path without `.` and `..`; and what is well formed
//! arrives as it was sent.
#![no_main]

use std::path::{Component, Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Input, block_on};
use sandpiper_init::serve::fuzzing::form;

const CONTENT_TYPE: &str = "multipart/form-data; boundary=b";

fuzz_target!(|input: &[u8]| run(Input(input)));

type Files = Option<Vec<(PathBuf, Vec<u8>)>>;

fn run(mut input: Input<'_>) {
    let (size, shape) = (usize::from(input.byte()) + 1, input.byte());
    let path = (shape & 0x80 != 0).then_some("~/first");
    match shape % 4 {
        0 | 1 => drop(take(CONTENT_TYPE, path, input.0, size)),
        2 => {
            let text = String::from_utf8_lossy(input.0);
            drop(take(&text, path, b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\r\n--b--\r\n", size));
        }
        _ => {
            let mut files = Vec::new();
            while !input.is_empty() && files.len() < 16 {
                let (number, length) = (input.byte(), input.byte());
                files.push((format!("/tmp/{number}"), input.take(length.into()).to_vec()));
            }
            let sent = files.iter().map(|(name, content)| {
                [
                    format!("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n")
                        .as_bytes(),
                    content,
                    b"\r\n",
                ]
                .concat()
            });
            let body = [sent.collect::<Vec<_>>().concat(), b"--b--\r\n".to_vec()].concat();
            let taken = take(CONTENT_TYPE, None, &body, size);
            let is_plain = |content: &Vec<u8>| {
                !content.windows(4).any(|window| window == b"\r\n--") && !content.starts_with(b"--b")
            };
            if !files.is_empty() && files.iter().all(|(_, content)| is_plain(content)) {
                let files = files.into_iter().map(|(name, content)| (PathBuf::from(name), content)).collect();
                assert_eq!(taken, Some(files));
            }
        }
    }
}

fn take(content_type: &str, path: Option<&str>, body: &[u8], size: usize) -> Files {
    let whole = block_on(form(content_type, path, body.chunks(body.len().max(1))));
    let in_pieces = block_on(form(content_type, path, body.chunks(size)));
    assert_eq!(whole, in_pieces, "cut otherwise, it means something else");
    for (target, content) in whole.iter().flatten() {
        assert!(is_clean(target), "{target:?}");
        assert!(content.len() <= body.len());
    }
    whole
}

fn is_clean(target: &Path) -> bool {
    target.is_absolute() && target.components().skip(1).all(|part| matches!(part, Component::Normal(_)))
}
