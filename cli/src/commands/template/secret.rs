//! What a build is given besides its source: arguments, and secrets that stay out of layers and logs.

use std::ffi::OsStr;
use std::str::FromStr;

use anyhow::{Context, bail};

/// `--secret id=NAME,src=FILE` or `id=NAME,env=VARIABLE`, as Docker has it; `id=NAME` alone is the variable of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretArgument {
    pub(super) name: String,
    from: From,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    File(String),
    Variable(String),
}

impl FromStr for SecretArgument {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "write it as id=NAME,src=FILE or id=NAME,env=VARIABLE";
        let (mut name, mut from) = (None, None);
        for part in text.split(',') {
            match part.split_once('=').ok_or(FORM)? {
                ("id", value) if !value.is_empty() => name = Some(value.to_owned()),
                ("src" | "source", value) if from.is_none() => from = Some(From::File(value.to_owned())),
                ("env", value) if from.is_none() => from = Some(From::Variable(value.to_owned())),
                ("type", "file" | "env") => {}
                _ => return Err(FORM),
            }
        }
        let name = name.ok_or(FORM)?;
        let from = from.unwrap_or_else(|| From::Variable(name.clone()));
        Ok(Self { name, from })
    }
}

impl SecretArgument {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// Fails where the file or the variable is not there, or is no text.
    pub(super) fn read(&self) -> anyhow::Result<String> {
        match &self.from {
            From::File(path) => std::fs::read_to_string(path)
                .with_context(|| format!("The secret {} cannot be read from {path}", self.name)),
            From::Variable(variable) => match std::env::var(variable) {
                Ok(value) => Ok(value),
                Err(_) => bail!("The secret {} is not in the variable {variable}", self.name),
            },
        }
    }
}

/// `--build-arg NAME=VALUE`; `NAME` alone takes the value of the variable, and nothing where there is none.
pub(super) fn build_argument(text: &str) -> Result<Option<(String, String)>, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, std::env::var_os(text).as_deref().and_then(OsStr::to_str).map(str::to_owned)),
    };
    if name.is_empty() {
        return Err("write it as NAME=VALUE".to_owned());
    }
    Ok(value.map(|value| (name.to_owned(), value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_a_file_or_a_variable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "hunter2\n").unwrap();
        let read = |text: String| text.parse::<SecretArgument>().unwrap().read();

        assert_eq!(read(format!("id=token,src={}", file.display())).unwrap(), "hunter2\n");
        assert_eq!(read("type=env,id=token,env=PATH".into()).unwrap(), std::env::var("PATH").unwrap());
        assert_eq!(read("id=PATH".into()).unwrap(), std::env::var("PATH").unwrap());
        let error = read("id=token,env=SANDPIPER_NOT_SET".into()).unwrap_err().to_string();
        assert!(error.contains("SANDPIPER_NOT_SET"), "{error}");
        for text in ["", "token", "src=x", "id=,src=x", "id=a,src=x,env=y", "id=a,mode=0400"] {
            text.parse::<SecretArgument>().expect_err(text);
        }
    }

    #[test]
    fn an_argument_without_a_value_is_the_variables() {
        assert_eq!(build_argument("A=b=c"), Ok(Some(("A".into(), "b=c".into()))));
        assert_eq!(build_argument("PATH").unwrap().unwrap().1, std::env::var("PATH").unwrap());
        assert_eq!(build_argument("SANDPIPER_NOT_SET"), Ok(None));
        assert!(build_argument("=x").is_err());
    }
}
