//! How `/files` sends and takes bytes: conditions, ranges and gzip.

use std::fs;
use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};

use crate::support::{Server, open_folder, whole};

const BYTES: &str = "application/octet-stream";

impl Server {
    /// Gets a file with these header fields.
    async fn fetch(&self, path: &str, fields: &[(&str, &str)]) -> (StatusCode, HeaderMap, Bytes) {
        let mut request = Request::get(format!("/files?path={path}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let response = self.send(request.body(Full::default()).unwrap()).await;
        let headers = response.headers().clone();
        let (status, body) = whole(response).await;
        (status, headers, body)
    }

    async fn put_gzip(&self, path: &str, body: impl Into<Bytes>) -> StatusCode {
        let request = Request::post(format!("/files?path={path}"))
            .header("content-type", BYTES)
            .header("content-encoding", "gzip");
        whole(self.send(request.body(Full::new(body.into())).unwrap()).await).await.0
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut text).unwrap();
    text
}

/// Words that compress, in no period.
fn text(length: usize) -> Vec<u8> {
    let words = (0_u32..).flat_map(|number| format!("{} ", number.wrapping_mul(2_654_435_761) >> 20).into_bytes());
    words.take(length).collect()
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    });
    next.take(length).collect()
}

#[tokio::test]
async fn a_file_that_the_client_has_is_not_sent_again() {
    let server = Server::start();
    let path = format!("{}/file", open_folder(&server));
    fs::write(&path, "first").unwrap();

    let (_, first, _) = server.fetch(&path, &[]).await;
    let (tag, modified) = (first["etag"].to_str().unwrap(), first["last-modified"].to_str().unwrap());
    let (by_tag, told, empty) = server.fetch(&path, &[("if-none-match", tag)]).await;
    let (by_date, ..) = server.fetch(&path, &[("if-modified-since", modified)]).await;
    server.post(&format!("/files?path={path}"), BYTES, "other").await;
    let (changed, second, body) = server.fetch(&path, &[("if-none-match", tag)]).await;
    let (required, ..) = server.fetch(&path, &[("if-match", tag)]).await;

    assert_eq!((by_tag, by_date, empty.len()), (StatusCode::NOT_MODIFIED, StatusCode::NOT_MODIFIED, 0));
    assert_eq!(told["etag"], tag);
    assert_eq!((changed, body), (StatusCode::OK, Bytes::from("other")));
    assert_ne!(second["etag"], tag);
    assert_eq!(required, StatusCode::PRECONDITION_FAILED);
    assert_eq!(first["content-disposition"], "inline");
}

#[tokio::test]
async fn a_range_goes_on_only_with_the_file_that_it_began_with() {
    let server = Server::start();
    let path = format!("{}/file", open_folder(&server));
    fs::write(&path, "0123456789").unwrap();
    let (_, headers, _) = server.fetch(&path, &[]).await;
    let tag = headers["etag"].to_str().unwrap();
    let rest = async |path: &str| server.fetch(path, &[("range", "bytes=5-"), ("if-range", tag)]).await;

    let (same, _, end) = rest(&path).await;
    server.post(&format!("/files?path={path}"), BYTES, "abcdefghij").await;
    let (other, _, all) = rest(&path).await;

    assert_eq!((same, end), (StatusCode::PARTIAL_CONTENT, Bytes::from("56789")));
    assert_eq!((other, all), (StatusCode::OK, Bytes::from("abcdefghij")));
}

#[tokio::test]
async fn who_takes_gzip_gets_it_where_it_gains_something() {
    let server = Server::start();
    let (path, picture) = (format!("{}/text", open_folder(&server)), format!("{}/picture", open_folder(&server)));
    // Ends inside of a piece, and on the border of one.
    let (text, noise) = (text(1_000_003), noise(256 * 1024));
    fs::write(&path, &text).unwrap();
    fs::write(&picture, &noise).unwrap();
    let gzip = [("accept-encoding", "gzip, deflate")];

    let (status, headers, packed) = server.fetch(&path, &gzip).await;
    let (_, plain_headers, plain) = server.fetch(&path, &[]).await;
    let (_, picture_headers, unpacked) = server.fetch(&picture, &gzip).await;
    let (_, forced_headers, forced) = server.fetch(&picture, &[("accept-encoding", "gzip, identity;q=0")]).await;
    let (ranged, _, range) = server.fetch(&path, &[gzip[0], ("range", "bytes=0-3")]).await;
    let (neither, ..) = server.fetch(&path, &[("accept-encoding", "br, *;q=0")]).await;

    assert_eq!((status, headers["content-encoding"].as_bytes()), (StatusCode::OK, &b"gzip"[..]));
    assert!(packed.len() < text.len() / 2 && gunzip(&packed) == text);
    assert_eq!(headers["etag"].to_str().unwrap(), format!("W/{}", plain_headers["etag"].to_str().unwrap()));
    assert!(!plain_headers.contains_key("content-encoding") && plain == text);
    assert!(!picture_headers.contains_key("content-encoding") && unpacked == noise);
    assert!(forced_headers.contains_key("content-encoding") && gunzip(&forced) == noise);
    assert_eq!((ranged, range), (StatusCode::PARTIAL_CONTENT, Bytes::copy_from_slice(&text[..4])));
    assert_eq!(neither, StatusCode::NOT_ACCEPTABLE);
}

#[tokio::test]
async fn an_upload_in_gzip_is_unpacked() {
    let server = Server::start();
    let path = format!("{}/file", open_folder(&server));
    let text = text(1_000_000);
    let two_members = [gzip(&text[..400_000]), gzip(&text[400_000..])].concat();

    let status = server.put_gzip(&path, two_members).await;

    assert_eq!(status, StatusCode::OK);
    assert!(fs::read(&path).unwrap() == text);
}

#[tokio::test]
async fn a_broken_gzip_upload_leaves_what_was_there() {
    let server = Server::start();
    let folder = format!("{}/broken", open_folder(&server));
    fs::create_dir(&folder).unwrap();
    let path = format!("{folder}/file");
    fs::write(&path, "old").unwrap();
    let whole = gzip(&text(100_000));
    let mut changed = whole.clone();
    changed[50_000.min(whole.len() / 2)] ^= 0x55;
    let followed = [whole.as_slice(), b"and more"].concat();

    for body in [&whole[..whole.len() - 4], &whole[..9], b"", b"no gzip at all", &changed, &followed] {
        assert_eq!(server.put_gzip(&path, body.to_vec()).await, StatusCode::BAD_REQUEST, "{}", body.len());
    }

    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    let form = Request::post("/files").header("content-type", "multipart/form-data; boundary=b");
    let form = form.header("content-encoding", "gzip").body(Full::default()).unwrap();
    assert_eq!(server.send(form).await.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let other = Request::post(format!("/files?path={path}")).header("content-type", BYTES);
    let other = other.header("content-encoding", "br").body(Full::default()).unwrap();
    assert_eq!(server.send(other).await.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn a_head_is_answered_without_the_bytes() {
    let server = Server::start();
    let path = format!("{}/file", open_folder(&server));
    fs::write(&path, "12345").unwrap();

    let response = server.send(Request::head(format!("/files?path={path}")).body(Full::default()).unwrap()).await;

    assert_eq!((response.status(), &response.headers()["content-length"]), (StatusCode::OK, &"5".parse().unwrap()));
    assert_eq!(whole(response).await.1.len(), 0);
}
