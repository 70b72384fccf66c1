//! Files that are sent with a form (`multipart/form-data`, RFC 7578), piece by piece: never one of them as a whole.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::{Stream, stream};
use multer::{Constraints, Field, Multipart, SizeLimit};
use tokio::time::timeout;

use crate::api::Problem;
use crate::form::Fields;

/// The fields that files are in.
const FILE: &str = "file";
/// Longest field that is no file, in bytes; and how many come before the files.
const MAX_FIELD: u64 = 8 << 10;
const MAX_FIELDS: usize = 16;
/// For the next piece to come: after it, nobody is there.
const PIECE: Duration = Duration::from_secs(60);

/// The files of a form, in their order.
#[derive(Debug)]
pub struct Files {
    form: Multipart<'static>,
    first: Option<Field<'static>>,
}

impl Files {
    /// Reads a form as far as its first file.
    ///
    /// # Errors
    ///
    /// It is no such form, breaks off, or has fields that are too long.
    pub async fn open(headers: &HeaderMap, body: Body) -> Result<(Fields, Self), Problem> {
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let boundary = multer::parse_boundary(content_type).map_err(broken)?;
        // Files are as long as there is room for where they go.
        let limit = SizeLimit::new().per_field(MAX_FIELD).for_field(FILE, u64::MAX);
        let mut form =
            Multipart::with_constraints(body.into_data_stream(), boundary, Constraints::new().size_limit(limit));
        let mut fields = Vec::new();
        let first = loop {
            let Some(field) = next(&mut form).await? else { break None };
            if field.name() == Some(FILE) {
                break Some(field);
            }
            if fields.len() == MAX_FIELDS {
                return Err(Problem::new(StatusCode::BAD_REQUEST, "The form has too many fields before its files"));
            }
            let name = field.name().unwrap_or_default().to_owned();
            fields.push((name, timeout(PIECE, field.text()).await.map_err(|_| late())?.map_err(broken)?));
        };
        Ok((Fields::new(fields), Self { form, first }))
    }

    /// The next file; `None` at the end. The one before has been read, or is not wanted.
    ///
    /// # Errors
    ///
    /// The form breaks off.
    pub async fn next(&mut self) -> Result<Option<File>, Problem> {
        loop {
            let field = match self.first.take() {
                Some(field) => Some(field),
                None => next(&mut self.form).await?,
            };
            let Some(field) = field else { return Ok(None) };
            let name = field.file_name().unwrap_or_default().to_owned();
            // A form in which no file was chosen has one without a name.
            if field.name() == Some(FILE) && !name.is_empty() {
                return Ok(Some(File { name, content: field }));
            }
        }
    }
}

async fn next(form: &mut Multipart<'static>) -> Result<Option<Field<'static>>, Problem> {
    timeout(PIECE, form.next_field()).await.map_err(|_| late())?.map_err(broken)
}

/// One file.
#[derive(Debug)]
pub struct File {
    /// As the browser calls it: anything.
    pub name: String,
    content: Field<'static>,
}

impl File {
    /// What is in it, as it comes.
    pub fn content(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        stream::try_unfold(self.content, async |mut content| {
            let piece = timeout(PIECE, content.chunk()).await.map_err(io::Error::from)?.map_err(io::Error::other)?;
            Ok(piece.map(|piece| (piece, content)))
        })
    }
}

fn broken(error: multer::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, format!("The form with files cannot be read: {error}"))
}

fn late() -> Problem {
    let message = format!("Nothing came of the form for {} s; send it again", PIECE.as_secs());
    Problem::new(StatusCode::REQUEST_TIMEOUT, message)
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt;

    use super::*;

    async fn opened(text: &str) -> Result<(Fields, Files), Problem> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "multipart/form-data; boundary=b".parse().unwrap());
        Files::open(&headers, Body::from(text.replace('\n', "\r\n"))).await
    }

    const FIELD: &str = "--b\nContent-Disposition: form-data; name=\"form\"\n\nword\n";

    #[tokio::test]
    async fn fields_come_before_files_and_a_file_that_was_not_chosen_is_none() {
        let file =
            |name| format!("--b\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\n\nof {name}\n");
        let form = format!("{FIELD}{}{}{}--b--\n", file("a"), file(""), file("ü \\\"b"));
        let (fields, mut files) = opened(&form).await.unwrap();
        assert_eq!(fields.exact("form"), "word");
        let mut names = Vec::new();
        while let Some(file) = files.next().await.unwrap() {
            names.push(file.name.clone());
            let content: Vec<Bytes> = file.content().try_collect().await.unwrap();
            assert!(content.concat().starts_with(b"of "));
        }
        assert_eq!(names, ["a", "ü \"b"]);
    }

    #[tokio::test]
    async fn a_form_that_breaks_off_or_is_too_long_is_an_error() {
        assert!(
            opened(&format!("--b\nContent-Disposition: form-data; name=\"x\"\n\n{}", "x".repeat(9000))).await.is_err()
        );
        let cut = format!("{FIELD}--b\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\n\nhalf");
        let (_, mut files) = opened(&cut).await.unwrap();
        let file = files.next().await.unwrap().unwrap();
        assert!(file.content().try_collect::<Vec<_>>().await.is_err());
        assert!(Files::open(&HeaderMap::new(), Body::empty()).await.is_err());
        assert!(opened(&FIELD.repeat(MAX_FIELDS + 1)).await.is_err());
    }
}
