//! The environment of a process, and the programs that its command may mean.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;

use super::child::c_string;
use crate::serve::connect::Error;
use crate::users::User;

/// Where programs are looked for unless the host or the request says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The terminal that people's clients are compatible with.
const TERM: &str = "xterm-256color";

/// A finished environment.
pub(super) struct Environment {
    entries: Vec<CString>,
    path: String,
}

impl Environment {
    /// `NAME=value` each.
    pub(super) fn entries(&self) -> &[CString] {
        &self.entries
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// What the login of `user` gives, overridden by the host's variables, overridden by the request's.
pub(super) fn of(
    user: &User,
    from_host: &BTreeMap<String, String>,
    from_request: &BTreeMap<String, String>,
    terminal: bool,
) -> Result<Environment, Error> {
    let home = user.home.to_string_lossy();
    let mut variables: BTreeMap<&str, &str> = BTreeMap::from([
        ("PATH", PATH),
        ("HOME", &*home),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("SHELL", &user.shell),
    ]);
    if terminal {
        variables.insert("TERM", TERM);
    }
    variables.extend(from_host.iter().chain(from_request).map(|(name, value)| (name.as_str(), value.as_str())));
    let entries = variables
        .iter()
        .map(|(name, value)| {
            if name.is_empty() || name.contains('=') {
                return Err(Error::invalid(format!("{name:?} is not a name of an environment variable")));
            }
            c_string(format!("{name}={value}").as_bytes())
        })
        .collect::<Result<_, _>>()?;
    let path = variables.get("PATH").copied().unwrap_or(PATH).to_owned();
    Ok(Environment { entries, path })
}

/// The files that `cmd` may mean, in the order to try them: a path is one, a name one for each folder of `path`.
/// Relative ones count from `folder`, where the process starts.
pub(super) fn programs(cmd: &str, path: &str, folder: &Path) -> Result<Vec<CString>, Error> {
    if cmd.is_empty() {
        return Err(Error::invalid("The request names no command"));
    }
    let full = |program: &Path| {
        use std::os::unix::ffi::OsStrExt;
        c_string(folder.join(program).as_os_str().as_bytes())
    };
    if cmd.contains('/') {
        return Ok(vec![full(Path::new(cmd))?]);
    }
    path.split(':').map(|entry| full(&Path::new(entry).join(cmd))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_overrides_the_host_and_the_host_the_login() {
        let host = BTreeMap::from([("PATH".into(), "/host".into()), ("A".into(), "host".into())]);
        let request = BTreeMap::from([("A".into(), "request".into())]);

        let environment = of(&User::example(), &host, &request, true).unwrap();

        let entries: Vec<_> = environment.entries().iter().map(|entry| entry.to_str().unwrap()).collect();
        let expected = [
            "A=request",
            "HOME=/home/user",
            "LOGNAME=user",
            "PATH=/host",
            "SHELL=/bin/sh",
            "TERM=xterm-256color",
            "USER=user",
        ];
        assert_eq!(entries, expected);
        assert_eq!(environment.path(), "/host");
    }

    #[test]
    fn names_that_the_kernel_would_misread_are_refused() {
        for (name, value) in [("A=B", ""), ("", "x"), ("A", "x\0y")] {
            let request = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            assert!(of(&User::example(), &BTreeMap::new(), &request, false).is_err(), "{name:?}");
        }
    }

    #[test]
    fn commands_are_looked_for_like_a_shell_does() {
        let found = |cmd| {
            programs(cmd, "/bin:rel:", Path::new("/work"))
                .map(|all| all.iter().map(|program| program.to_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(found("ls").unwrap(), ["/bin/ls", "/work/rel/ls", "/work/ls"]);
        assert_eq!(found("./run").unwrap(), ["/work/./run"]);
        assert_eq!(found("/bin/sh").unwrap(), ["/bin/sh"]);
        assert!(found("").is_err());
    }
}
