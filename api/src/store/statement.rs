//! SQL that is put together while it is known what to ask for, in place of `sqlx::QueryBuilder`, whose `?` PostgreSQL does
//! not understand.

use std::fmt::Write as _;

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

/// Text of the program's own, and values, which become `$1`, `$2`, …
#[derive(Debug)]
pub(crate) struct Statement {
    sql: String,
    values: Vec<Value>,
}

/// A value to bind.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
}

impl Statement {
    pub(crate) fn new(sql: &'static str) -> Self {
        Self { sql: sql.to_owned(), values: Vec::new() }
    }

    pub(crate) fn push(&mut self, sql: &'static str) -> &mut Self {
        self.sql.push_str(sql);
        self
    }

    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        // Writing to a String cannot fail.
        let _ = write!(self.sql, "${}", self.values.len());
        self
    }

    /// `(…, …)`, for `IN`.
    pub(crate) fn push_list<V: Into<Value>>(&mut self, values: impl IntoIterator<Item = V>) -> &mut Self {
        let mut before = "(";
        for value in values {
            self.push(before).push_bind(value);
            before = ", ";
        }
        if before == "(" {
            // None of none.
            self.push("(NULL");
        }
        self.push(")")
    }

    pub(crate) fn build(self) -> Query<'static, Any, AnyArguments> {
        // Only literals and placeholders are ever pushed.
        let query = sqlx::query(AssertSqlSafe(self.sql));
        self.values.into_iter().fold(query, |query, value| match value {
            Value::Text(text) => query.bind(text),
            Value::Integer(number) => query.bind(number),
        })
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Value::Text(text.clone())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Integer(number)
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Execute;

    use super::*;

    #[test]
    fn values_are_numbered_in_the_order_they_come() {
        let mut statement = Statement::new("SELECT 1 FROM t WHERE a = ");
        statement.push_bind("x").push(" AND b IN ").push_list(["y", "z"]).push(" LIMIT ").push_bind(5);

        assert_eq!(statement.build().sql().as_str(), "SELECT 1 FROM t WHERE a = $1 AND b IN ($2, $3) LIMIT $4");
    }
}
