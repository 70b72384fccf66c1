//! A second reader of HTTP/1 requests. It takes the plain forms only: what it takes, nobody can read otherwise.

/// A request, byte by byte in Latin-1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub version: String,
    /// With names in lower case.
    pub fields: Vec<(String, String)>,
    pub body: String,
}

/// Why bytes are not read as a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    Unfinished,
    /// Another reader may see something else in them.
    Doubtful,
}

impl Request {
    /// The request that `bytes` begin with, and what comes behind it.
    pub fn read(bytes: &[u8]) -> Result<(Request, &[u8]), Flaw> {
        let (head, rest) = split(bytes, b"\r\n\r\n").ok_or(Flaw::Unfinished)?;
        let head = latin1(head);
        let mut lines = head.split("\r\n");
        let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let &[method, target, version @ ("HTTP/1.0" | "HTTP/1.1")] = first.as_slice() else {
            return Err(Flaw::Doubtful);
        };
        let is_target = !target.is_empty() && target.chars().all(|c| c > ' ' && c != '\x7f');
        let fields: Option<Vec<_>> = lines.map(field).collect();
        let fields = fields.filter(|_| is_token(method) && is_target).ok_or(Flaw::Doubtful)?;
        let [method, target, version] = [method, target, version].map(str::to_owned);
        let mut request = Request { method, target, version, fields, body: String::new() };
        let rest = request.read_body(rest)?;
        Ok((request, rest))
    }

    /// The values of a field, one for each line.
    pub fn values(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(field, _)| field == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether every proxy passes this on as it is, but for fields that it sets itself.
    pub fn is_ordinary(&self) -> bool {
        let is_ordinary = |(name, _): &(String, String)| {
            matches!(name.as_str(), "host" | "content-length" | "transfer-encoding") || is_of_the_client(name)
        };
        matches!(self.method.as_str(), "GET" | "POST")
            && self.target.strip_prefix('/').is_some_and(|path| path.chars().all(|c| c.is_ascii_alphanumeric()))
            && self.version == "HTTP/1.1"
            && self.fields.len() <= 90
            && self.fields.iter().all(is_ordinary)
    }

    /// What an ordinary request says whichever way it is framed: method and target, the client's own fields, body.
    pub fn message(&self) -> (&str, &str, Vec<&(String, String)>, &str) {
        let mut fields: Vec<_> = self.fields.iter().filter(|(name, _)| is_of_the_client(name)).collect();
        // Lines of one name stay in their order.
        fields.sort_by_key(|(name, _)| name);
        (&self.method, &self.target, fields, &self.body)
    }

    fn read_body<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], Flaw> {
        match (self.values("content-length").as_slice(), self.values("transfer-encoding").as_slice()) {
            ([], []) => Ok(rest),
            ([length], []) if is_number(length, 10) => {
                let length = length.parse().map_err(|_| Flaw::Doubtful)?;
                let (body, rest) = rest.split_at_checked(length).ok_or(Flaw::Unfinished)?;
                self.body = latin1(body);
                Ok(rest)
            }
            ([], [coding]) if coding.eq_ignore_ascii_case("chunked") && self.version == "HTTP/1.1" => {
                self.read_chunks(rest)
            }
            _ => Err(Flaw::Doubtful),
        }
    }

    /// Chunks without extensions, and trailers, which are forgotten.
    fn read_chunks<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], Flaw> {
        loop {
            let (size, behind) = split(rest, b"\r\n").ok_or(Flaw::Unfinished)?;
            let size = latin1(size);
            if !is_number(&size, 16) {
                return Err(Flaw::Doubtful);
            }
            let size = usize::from_str_radix(&size, 16).map_err(|_| Flaw::Doubtful)?;
            if size == 0 {
                rest = behind;
                break;
            }
            let (chunk, behind) = behind.split_at_checked(size).ok_or(Flaw::Unfinished)?;
            let (end, behind) = behind.split_at_checked(2).ok_or(Flaw::Unfinished)?;
            if end != b"\r\n" {
                return Err(Flaw::Doubtful);
            }
            self.body.push_str(&latin1(chunk));
            rest = behind;
        }
        loop {
            let (line, behind) = split(rest, b"\r\n").ok_or(Flaw::Unfinished)?;
            rest = behind;
            if line.is_empty() {
                return Ok(rest);
            }
            field(&latin1(line)).ok_or(Flaw::Doubtful)?;
        }
    }
}

/// How a stream of answers went, by their statuses. One at the end that is hyper's own, a 400 without a body, is left out:
/// whether it says so about a head that is wrong and has no end depends on how that came.
pub fn statuses(answers: &[u8]) -> Vec<String> {
    let text = latin1(answers);
    let mut answers: Vec<&str> = text.split("HTTP/1.1 ").skip(1).collect();
    answers.pop_if(|last| last.starts_with("400 ") && last.contains("\r\ncontent-length: 0\r\n"));
    answers.into_iter().filter_map(|answer| answer.lines().next()).map(str::to_owned).collect()
}

/// Whether no proxy cares about a field of this name.
fn is_of_the_client(name: &str) -> bool {
    let taken = ["x-forwarded-", "x-real-ip", "x-access-token"];
    name.starts_with("x-") && !taken.iter().any(|taken| name.starts_with(taken))
}

fn field(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let is_value = value.chars().all(|c| c == '\t' || (c >= ' ' && c != '\x7f'));
    (is_token(name) && is_value).then(|| (name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()))
}

/// RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
}

/// Digits only, and not so many that a reader could lose some.
fn is_number(text: &str, radix: u32) -> bool {
    (1..=15).contains(&text.len()) && text.chars().all(|c| c.is_digit(radix))
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let found = bytes.windows(at.len()).position(|window| window == at)?;
    Some((&bytes[..found], &bytes[found + at.len()..]))
}
