//! SQL that is put together while it is known what to ask for, in place of `sqlx::QueryBuilder`, whose `?` PostgreSQL does
//! not understand.

use std::fmt::Write as _;

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

/// Text of the program's own, and values, which become `$1`, `$2`, …
#[derive(Debug)]
pub struct Statement {
    sql: String,
    values: Vec<Value>,
    names: &'static Names,
}

/// What stands for a name of the schema, `{deliveries}` say, and the name, for statements that are the same for several tables.
pub type Names = [(&'static str, &'static str)];

/// A value to bind.
#[derive(Debug, Clone)]
pub enum Value {
    Text(Option<String>),
    Integer(Option<i64>),
    Bytes(Vec<u8>),
}

impl Statement {
    pub fn new(sql: &'static str) -> Self {
        Self::naming(&[], sql)
    }

    /// A statement in whose text, here and in what is pushed, each of `names` is replaced.
    pub fn naming(names: &'static Names, sql: &'static str) -> Self {
        Self { sql: sql.to_owned(), values: Vec::new(), names }
    }

    pub fn push(&mut self, sql: &'static str) -> &mut Self {
        self.sql.push_str(sql);
        self
    }

    pub fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        // Writing to a String cannot fail.
        let _ = write!(self.sql, "${}", self.values.len());
        self
    }

    /// `(…, …)`, for `IN`.
    pub fn push_list<V: Into<Value>>(&mut self, values: impl IntoIterator<Item = V>) -> &mut Self {
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

    /// `VALUES (…), (…)`: a table whose columns are `column1`, `column2`, …, for what is done to many rows at once.
    ///
    /// Rows of NULL fill it up to a [round](round_up) number. They match nothing; who does not compare asks for
    /// `column1 IS NOT NULL`.
    pub fn push_rows<const N: usize>(&mut self, rows: impl IntoIterator<Item = [Value; N]>) -> &mut Self {
        let (mut length, mut before) = (0_usize, "VALUES ");
        for row in rows {
            self.push(before).push_list(row);
            (length, before) = (length + 1, ", ");
        }
        for _ in length..round_up(length) {
            self.push(before).push("(NULL");
            for _ in 1..N {
                self.push(", NULL");
            }
            self.push(")");
            before = ", ";
        }
        self
    }

    pub fn build(self) -> Query<'static, Any, AnyArguments> {
        // Only literals and placeholders are ever pushed.
        let sql = self.names.iter().fold(self.sql, |sql, (placeholder, name)| sql.replace(placeholder, name));
        let query = sqlx::query(AssertSqlSafe(sql));
        self.values.into_iter().fold(query, |query, value| match value {
            Value::Text(text) => query.bind(text),
            Value::Integer(number) => query.bind(number),
            Value::Bytes(bytes) => query.bind(bytes),
        })
    }
}

/// The next power of four. Statements for many things are made for round numbers of them: so their texts are few, and a
/// connection, which keeps a hundred, has each prepared.
pub fn round_up(length: usize) -> usize {
    std::iter::successors(Some(1_usize), |round| round.checked_mul(4)).find(|round| *round >= length).unwrap_or(length)
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(Some(text.to_owned()))
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        Value::Text(text.map(str::to_owned))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(Some(text))
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Value::Text(Some(text.clone()))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Integer(Some(number))
    }
}

impl From<Option<i64>> for Value {
    fn from(number: Option<i64>) -> Self {
        Value::Integer(number)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Value::Bytes(bytes.to_vec())
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

    #[test]
    fn names_are_put_into_the_text_and_not_into_values() {
        let mut statement = Statement::naming(&[("{things}", "shoes")], "SELECT {things}.id FROM {things} WHERE id = ");
        statement.push_bind("{things}").push(" AND {things}.size = 42");

        assert_eq!(statement.build().sql().as_str(), "SELECT shoes.id FROM shoes WHERE id = $1 AND shoes.size = 42");
    }

    #[test]
    fn rows_are_filled_up_to_a_round_number() {
        let of = |count: i64| {
            let mut statement = Statement::new("");
            statement.push_rows((0..count).map(|number| ["a".into(), number.into()]));
            statement.build().sql().as_str().to_owned()
        };

        assert_eq!(of(0), "VALUES (NULL, NULL)");
        assert_eq!(of(1), "VALUES ($1, $2)");
        assert_eq!(of(3), "VALUES ($1, $2), ($3, $4), ($5, $6), (NULL, NULL)");
        assert_eq!([4, 5, 64, 65, 256].map(round_up), [4, 16, 64, 256, 256]);
    }
}
